{{- define "berth.disruption" }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .release }}-{{ .worker }}
  labels: {app: {{ .release }}, worker: {{ .worker }}}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app: {{ .release }}, worker: {{ .worker }}}
{{- end }}
