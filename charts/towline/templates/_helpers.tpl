{{- /* Reference of one of our images. Argument: dict "root" . "name" NAME */}}
{{- define "towline.image" -}}
{{- $override := get .root.Values.images.overrides .name -}}
{{- $override | default (printf "%s/towline-%s:%s" .root.Values.images.registry .name .root.Values.images.tag) -}}
{{- end }}

{{- /* Labels of an object. Argument: the component's name */}}
{{- define "towline.labels" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: towline
towline.dev/role: {{ . }}
{{- end }}

{{- define "towline.podSecurity" -}}
fsGroup: 65532
runAsGroup: 65532
runAsNonRoot: true
runAsUser: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "towline.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
privileged: false
readOnlyRootFilesystem: true
{{- end }}

{{- /* Where a trusted pod runs, and with which pull secrets. Argument: . */}}
{{- define "towline.placement" -}}
imagePullSecrets: {{- range .Values.images.pullSecrets }}
  - name: {{ . }}
{{- else }} []
{{- end }}
nodeSelector: {{- toYaml (.Values.trustedNodes.nodeSelector | default dict) | nindent 2 }}
tolerations: {{- toYaml .Values.trustedNodes.tolerations | nindent 2 }}
{{- end }}

{{- define "towline.storeSecret" -}}
{{ .Values.store.existingSecret | default "towline-store" }}
{{- end }}

{{- define "towline.gatewayHost" -}}
towline-gateway.{{ .Release.Namespace }}.svc
{{- end }}

{{- /* Peers and rules of network policies. */}}
{{- define "towline.peer" -}}
namespaceSelector:
  matchLabels:
    kubernetes.io/metadata.name: {{ .namespace }}
podSelector:
  matchLabels:
    towline.dev/role: {{ .role }}
{{- end }}

{{- define "towline.toDNS" -}}
- to: {{- toYaml .Values.networkPolicy.dns.to | nindent 4 }}
  ports:
    - {port: {{ .Values.networkPolicy.dns.port }}, protocol: UDP}
    - {port: {{ .Values.networkPolicy.dns.port }}, protocol: TCP}
{{- end }}

{{- define "towline.toStore" -}}
{{- if .Values.store.existingSecret }}
{{- range .Values.store.external }}
- to:
    - ipBlock: {cidr: {{ .cidr }}}
  ports:
    - {port: {{ .port }}, protocol: TCP}
{{- end }}
{{- else }}
- to:
    - {{- include "towline.peer" (dict "namespace" .Release.Namespace "role" "store") | nindent 6 }}
  ports:
    - {port: 6379, protocol: TCP}
{{- end }}
{{- end }}

{{- define "towline.toAPIServer" -}}
- to:
    {{- range .Values.networkPolicy.apiServer.cidrs }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range .Values.networkPolicy.apiServer.ports }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- end }}

{{- /* A Job of the operator's image that does one thing for Helm. Arguments: root, verb, annotations */}}
{{- define "towline.hookJob" }}
apiVersion: batch/v1
kind: Job
metadata:
  annotations: {{- toYaml .annotations | nindent 4 }}
  labels: {{- include "towline.labels" "hook" | nindent 4 }}
  name: towline-{{ .verb }}
  namespace: {{ .root.Release.Namespace }}
spec:
  activeDeadlineSeconds: 180
  backoffLimit: 3
  template:
    metadata:
      labels: {{- include "towline.labels" "hook" | nindent 8 }}
    spec:
      automountServiceAccountToken: true
      containers:
        - command: [/usr/bin/python3, -I, -m, towline.controller.chart_hooks, {{ .verb }}]
          env:
            - {name: TOWLINE_HARNESS_NAMESPACE, value: {{ .root.Values.namespaces.harness }}}
            - {name: TOWLINE_SANDBOX_NAMESPACE, value: {{ .root.Values.namespaces.sandboxes }}}
          image: {{ include "towline.image" (dict "root" .root "name" "operator") }}
          imagePullPolicy: {{ .root.Values.images.pullPolicy }}
          name: {{ .verb }}
          resources:
            limits: {memory: 256Mi}
            requests: {cpu: 50m, memory: 128Mi}
          securityContext: {{- include "towline.containerSecurity" . | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
          volumeMounts:
            - {mountPath: /tmp, name: tmp}
      enableServiceLinks: false
      {{- include "towline.placement" .root | nindent 6 }}
      restartPolicy: Never
      securityContext: {{- include "towline.podSecurity" . | nindent 8 }}
      serviceAccountName: towline-{{ .verb }}
      volumes:
        - emptyDir: {medium: Memory, sizeLimit: 16Mi}
          name: tmp
{{- end }}
