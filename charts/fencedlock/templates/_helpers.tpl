{{/* The name of everything in the release. */}}
{{- define "fencedlock.name" -}}
{{ .Release.Name | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "fencedlock.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "fencedlock.name" .) }}
{{- end }}

{{/* What tells this release's pods from all others. It never changes: a Deployment's selector is immutable. */}}
{{- define "fencedlock.selector" -}}
app.kubernetes.io/name: fencedlock
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "fencedlock.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}

{{- define "fencedlock.labels" -}}
{{ include "fencedlock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What the operator may do, once for the cluster or once in each namespace. Each rule says what it is for. */}}
{{- define "fencedlock.rules" -}}
# Declarations are read; only their status is written.
- apiGroups: [fencedlock.dev]
  resources: [fencedlocks, writeboundaries]
  verbs: [get, list, watch]
- apiGroups: [fencedlock.dev]
  resources: [fencedlocks/status, writeboundaries/status]
  verbs: [update]
# Leases say who owns a lock. They are never written.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, list, watch]
# A holder's pod tells two lives of one identity apart.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# Epochs are reserved where they outlive a FencedLock; fences of named targets are recorded. RBAC cannot limit create to a name.
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [fencedlock-epochs, fencedlock-fences]
  verbs: [get, update]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end }}

{{/* Which namespaces a cluster-wide policy is about: those that are served. */}}
{{- define "fencedlock.servedNamespaces" -}}
{{- with .Values.namespaces -}}
namespaceSelector:
  matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values:
      {{- toYaml . | nindent 6 }}
{{- end -}}
{{- end }}
