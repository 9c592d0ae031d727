{{/* Labels by which selectors find the pods of a component. Arguments: a list of root and component. */}}
{{- define "leadsman.selector" -}}
app.kubernetes.io/name: leadsman
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* Labels that Helm's users expect on every object beside those. Argument: root. */}}
{{- define "leadsman.releaseLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* All labels of an object of a component. Arguments: a list of root and component. */}}
{{- define "leadsman.labels" -}}
{{ include "leadsman.selector" . }}
{{ include "leadsman.releaseLabels" (index . 0) }}
{{- end }}

{{- define "leadsman.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/*
The feature gates as JSON, each true or false. The manager reads the same text by the same rules, with the same defaults
(`Gates` in crates/manager/src/gates.rs).
*/}}
{{- define "leadsman.gates" -}}
{{- $gates := .Files.Get "files/gates.yaml" | fromYaml -}}
{{- $known := keys $gates | sortAlpha | join ", " -}}
{{- range $setting := splitList "," .Values.featureGates -}}
  {{- $pair := splitn "=" 2 (nospace $setting) -}}
  {{- if $pair._0 -}}
    {{- if not (hasKey $gates $pair._0) -}}
      {{- fail (printf "featureGates: unknown feature gate %q; the gates are %s" $pair._0 $known) -}}
    {{- end -}}
    {{- $_ := set $gates $pair._0 (has $pair._1 (list "1" "t" "T" "true" "TRUE" "True")) -}}
  {{- end -}}
{{- end -}}
{{- if not $gates.PodProbeMarkerGate -}}
  {{- /* It is a part of the other feature. */ -}}
  {{- $_ := set $gates "EnablePodProbeMarkerOnServerless" false -}}
{{- end -}}
{{- if not $gates.SidecarSetGate -}}
  {{- $_ := set $gates "SidecarSetPatchPodMetadataDefaultsAllowed" false -}}
{{- end -}}
{{ toJson $gates }}
{{- end }}

{{/* The standing rule of SidecarSets that the manager goes by; empty without one (`standing_rule` in crates/manager/src/args.rs). */}}
{{- define "leadsman.standingRule" -}}
{{- $gates := include "leadsman.gates" . | fromJson -}}
{{- $rule := .Values.sidecarSets.standingRule | default (eq .Values.compatibility "openkruise" | ternary "fail" "none") -}}
{{- if and $gates.SidecarSetGate (ne $rule "none") }}{{ $rule }}{{ end -}}
{{- end }}

{{/* Whether a feature that is on has webhooks; empty if not. */}}
{{- define "leadsman.webhooks" -}}
{{- $gates := include "leadsman.gates" . | fromJson -}}
{{- if or $gates.EnablePodProbeMarkerOnServerless $gates.SidecarSetGate }}true{{ end -}}
{{- end }}

{{/* Whether the manager is given a certificate of cert-manager's; empty if not. */}}
{{- define "leadsman.certManager" -}}
{{- if and (include "leadsman.webhooks" .) (eq .Values.certificates.source "cert-manager") }}true{{ end -}}
{{- end }}

{{/* The path of the container runtime's socket. */}}
{{- define "leadsman.socket" -}}
{{- $presets := dict
  "containerd" "/run/containerd/containerd.sock"
  "k3s" "/run/k3s/containerd/containerd.sock"
  "microk8s" "/var/snap/microk8s/common/run/containerd.sock"
  "crio" "/run/crio/crio.sock" -}}
{{- with .Values.agent.runtime -}}
{{ .socket | default (get $presets .preset) }}
{{- end -}}
{{- end }}

{{/* Arguments that manager and agent share. Arguments: a list of root and port. */}}
{{- define "leadsman.sharedArgs" -}}
{{- $root := index . 0 -}}
- --metrics-bind-address=:{{ index . 1 }}
{{- with $root.Values.log }}
{{- if ne .filter "info" }}
- {{ printf "--log=%s" .filter | quote }}
{{- end }}
{{- if ne .format "text" }}
- --log-format={{ .format }}
{{- end }}
{{- end }}
{{- end }}

{{/* A container that has nothing but its own address space. */}}
{{- define "leadsman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Where and as whom manager and preflight run: restricted by the Pod Security Standards. Argument: root. */}}
{{- define "leadsman.restrictedPod" -}}
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.manager.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.manager.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
