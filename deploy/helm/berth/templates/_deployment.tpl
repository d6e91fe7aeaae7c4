{{- define "berth.deployment" }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .release }}-{{ .worker }}
  labels: {app: {{ .release }}, worker: {{ .worker }}}
spec:
  replicas: {{ .replicas }}
  {{- if .isAgent }}
  strategy: {type: Recreate} # two processes of one agent would carry out its orders twice
  {{- end }}
  selector:
    matchLabels: {app: {{ .release }}, worker: {{ .worker }}}
  template:
    metadata:
      labels: {app: {{ .release }}, worker: {{ .worker }}}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "9100"}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 30 # the worker completes its running handlers
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .worker }}
          image: {{ .values.image | quote }}
          imagePullPolicy: {{ .values.imagePullPolicy }}
          args: {{ toJson .args }}
          envFrom:
            - configMapRef: {name: {{ .release }}}
            {{- if .isCentral }}
            - configMapRef: {name: {{ .release }}-owner}
            {{- end }}
          env: {{ toJson .env }}
          volumeMounts:
            - {name: secret, mountPath: /etc/berth, readOnly: true}
            - {name: state, mountPath: /var/lib/berth}
            {{- range $path, $secret := .secrets }}
            - {name: {{ base $path }}, mountPath: {{ $path }}, readOnly: true}
            {{- end }}
          ports:
            - {name: metrics, containerPort: 9100}
            {{- if .port }}
            - {name: api, containerPort: {{ .port }}}
            {{- end }}
          startupProbe: # a start includes migrations of the database and the load of the index
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 5
            failureThreshold: 60
          livenessProbe: # answers while the process runs, even if RabbitMQ is unreachable
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 15
            timeoutSeconds: 5
          readinessProbe:
            {{- if .port }}
            httpGet: {path: {{ .ready }}, port: api, scheme: {{ if .values.tls.secret }}HTTPS{{ else }}HTTP{{ end }}}
            {{- else }}
            httpGet: {path: /healthz, port: metrics}
            {{- end }}
            periodSeconds: 5
            timeoutSeconds: 5
          resources: {{ toJson .values.resources }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
      volumes:
        - name: secret
          secret: {secretName: {{ .secret }}}
        - name: state
          emptyDir: {}
        {{- range $path, $secret := .secrets }}
        - name: {{ base $path }}
          secret: {secretName: {{ $secret }}}
        {{- end }}
{{- end }}
