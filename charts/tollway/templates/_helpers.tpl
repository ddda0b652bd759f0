{{/* Labels of every object. */}}
{{- define "tollway.labels" -}}
app.kubernetes.io/name: tollway
app.kubernetes.io/part-of: tollway
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels by which a part's pods are found: a list of the root and the part's name. */}}
{{- define "tollway.selector" -}}
app.kubernetes.io/name: tollway
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "tollway.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Names of objects that belong to no namespace. */}}
{{- define "tollway.clusterName" -}}
tollway-{{ .Release.Namespace }}
{{- end }}

{{/* What Pod Security `restricted` asks of a pod. */}}
{{- define "tollway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 15001
runAsGroup: 15001
fsGroup: 15001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* … and of its containers. */}}
{{- define "tollway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Probes at the port of metrics and health; the argument is the path that says whether a pod gets calls. */}}
{{- define "tollway.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ . }}, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 3
{{- end }}

{{/* Where a pod runs: a part's values. */}}
{{- define "tollway.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Replicas on different machines, as far as there are any: a list of the root and the part's name. */}}
{{- define "tollway.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "tollway.selector" . | nindent 8 }}
{{- end }}

{{/* The members of an own etcd, as its clients and as its members reach them. */}}
{{- define "tollway.etcdMembers" -}}
{{- $names := list }}
{{- range $i := until (int .Values.control.etcd.own.members) }}
{{- $names = append $names (printf "tollway-etcd-%d.tollway-etcd.%s.svc:2379" $i $.Release.Namespace) }}
{{- end }}
{{- join "," $names }}
{{- end }}

{{- define "tollway.etcdPeers" -}}
{{- $names := list }}
{{- range $i := until (int .Values.control.etcd.own.members) }}
{{- $names = append $names (printf "tollway-etcd-%d=https://tollway-etcd-%d.tollway-etcd.%s.svc:2380" $i $i $.Release.Namespace) }}
{{- end }}
{{- join "," $names }}
{{- end }}
