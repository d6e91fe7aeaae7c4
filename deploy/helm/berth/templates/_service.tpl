{{- define "berth.service" }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .release }}-{{ .service }}
  labels: {app: {{ .release }}, worker: {{ .worker }}}
spec:
  type: {{ .values.serviceType }}
  {{- if .isSticky }}
  sessionAffinity: ClientIP # a session is in the memory of one process
  {{- end }}
  selector: {app: {{ .release }}, worker: {{ .worker }}}
  ports:
    - {name: api, port: {{ .port }}, targetPort: api}
{{- end }}
