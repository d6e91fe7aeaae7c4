{{- define "berth.peers" }}{{ if .peers }}{{ .direction }}: {{ toJson .peers }}, {{ end }}{{ end }}
{{- define "berth.network" }}
{{- $peers := .values.networkPolicies }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .release }}-{{ .worker }}
  labels: {app: {{ .release }}, worker: {{ .worker }}}
spec:
  podSelector:
    matchLabels: {app: {{ .release }}, worker: {{ .worker }}}
  policyTypes: [Ingress, Egress]
  ingress:
    - { {{- template "berth.peers" dict "direction" "from" "peers" $peers.prometheus -}} ports: [{port: 9100, protocol: TCP}]}
    {{- if .port }}
    - { {{- template "berth.peers" dict "direction" "from" "peers" $peers.clients -}} ports: [{port: {{ .port }}, protocol: TCP}]}
    {{- end }}
  egress:
    - ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    - { {{- template "berth.peers" dict "direction" "to" "peers" $peers.broker -}} ports: [{port: 5672, protocol: TCP}, {port: 5671, protocol: TCP}]}
    {{- if .hasDatabase }}
    - { {{- template "berth.peers" dict "direction" "to" "peers" $peers.database -}} ports: [{port: 5432, protocol: TCP}]}
    {{- end }}
    {{- if .hasOpenstack }}
    - { {{- template "berth.peers" dict "direction" "to" "peers" $peers.openstack -}} ports: {{ toJson $peers.openstackPorts }}}
    {{- end }}
{{- end }}
