# shellcheck shell=bash disable=SC2154
# The part of hack/e2e.sh about Kubernetes objects: controllers that know nothing of fencing, as pods with the tokens that the kubelet projects.
# Sourced there; the functions and the node are its own.

libraries=(controller-runtime client-go kube-rs)
object() { kubectl get "$1" -n shop "$2" -o "jsonpath=$3"; }
# What a controller said last, and whether it ever said something.
last_event() { kubectl logs -n shop "$1" --tail=1 2> /dev/null | sed -n 's/.*"event":"\([a-z]*\)".*/\1/p'; }
has_said() { kubectl logs -n shop "$1" "${@:3}" 2> /dev/null | grep -q "$2"; }
# Waits for a command to succeed: until_true WHAT COMMAND…
until_true() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || fail "$what"
    sleep 0.1
  done
  passed=$((passed + 1))
}
is_last() { [ "$(last_event "$1")" = "$2" ]; }
owner_is() { [ "$(object configmap "web-$1" '{.data.owner}')" = "$2" ]; }
# The process of a controller in a pod.
process_of() {
  local pid
  for pid in $(pid_of '^/controller '); do
    if in_pod "$pid" "$1"; then echo "$pid"; fi
  done
}
controller() {
  local library=$1 name=$2 image=controller arguments
  arguments="[--library, $library, --namespace, shop, --lease, web-$library, --object, web-$library, --think, 1s]"
  if [ "$library" = kube-rs ]; then image=kube-rs arguments="[shop, web-$library, web-$library, '1000']"; fi
  kubectl apply -n shop -f - > /dev/null << P
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  serviceAccountName: controller
  containers:
  - {name: controller, image: localhost/$image:1, imagePullPolicy: Never, args: $arguments}
P
}
# Declares an object as guarded for a lock of the same name: guarded NAME RESOURCE GROUP EXEMPT
guarded() {
  kubectl apply -n shop -f - > /dev/null 2>&1 << D
apiVersion: fencedlock.dev/v1alpha1
kind: FencedLock
metadata: {name: $1}
spec:
  class: CorrectnessCritical
  purpose: One controller writes the object; two would undo each other's work.
  coordinator: {lease: {name: $1}}
  writeBoundaries: [$1]
---
apiVersion: fencedlock.dev/v1alpha1
kind: WriteBoundary
metadata: {name: $1}
spec:
  lockRef: {name: $1}
  type: Kubernetes
  mode: Enforce
  proof: {interval: 30s}
  kubernetes:
    claim: PodIdentity
    targets: [{group: "$3", resource: $2, names: [$1]}]
    exemptions: [$4]
D
}
grant_of() { kubectl get fencedlock -n shop "$1" -o 'jsonpath={.status.epoch} {.status.grant.state} {.status.grant.holder}'; }
# Whether an epoch of a lock is active for a pod: active_for LOCK EPOCH POD
active_for() { [[ "$(grant_of "$1")" == "$2 Active $3"* ]]; }

step "Controllers that know nothing of fencing, as pods: controller-runtime, client-go and kube-rs, each with its own object"
kubectl create namespace shop > /dev/null
kubectl label namespace shop fencedlock.dev/named=true > /dev/null
kubectl create role -n shop fence --verb=get,list,watch,patch --resource=configmaps,deployments.apps > /dev/null
kubectl create rolebinding -n shop fence --role=fence --serviceaccount=fencedlock:fencedlock > /dev/null
kubectl create serviceaccount -n shop controller > /dev/null
kubectl create role -n shop controller --verb=get,list,watch,create,update,patch --resource=configmaps,leases.coordination.k8s.io > /dev/null
kubectl create rolebinding -n shop controller --role=controller --serviceaccount=shop:controller > /dev/null
for library in "${libraries[@]}"; do
  kubectl create configmap -n shop "web-$library" > /dev/null
  guarded "web-$library" configmaps "" ""
  controller "$library" "$library-a"
done
for library in "${libraries[@]}"; do
  until_true "$library-a has no epoch: $(grant_of "web-$library")" active_for "web-$library" 1 "$library-a_"
  until_true "$library-a does not write" owner_is "$library" "$library-a"
  reaches shop "writeboundary/web-$library" '{.status.verdict}' Proven
  reaches shop "fencedlock/web-$library" '{.status.verdict}' Enforced
done
kubectl get fencedlocks,writeboundaries -n shop

# Cases A01, A03, A09, G12.
step "Each is stalled (SIGSTOP) between its read and its write; another one takes over and writes; it wakes up and is refused"
declare -A stalled_of
for library in "${libraries[@]}"; do
  pid=$(process_of "$library-a")
  # It is stopped while it works out what to write.
  while :; do
    until_true "$library-a reads no more" is_last "$library-a" read
    inside kill -STOP "$pid"
    if is_last "$library-a" read; then break; fi
    inside kill -CONT "$pid"
  done
  stalled_of[$library]=$pid
  controller "$library" "$library-b"
done
for library in "${libraries[@]}"; do
  until_true "$library-b did not take over: $(grant_of "web-$library")" active_for "web-$library" 2 "$library-b_"
  until_true "$library-b does not write" owner_is "$library" "$library-b"
done
for library in "${libraries[@]}"; do inside kill -CONT "${stalled_of[$library]}"; done
for library in "${libraries[@]}"; do
  until_true "$library-a was not refused" has_said "$library-a" "epoch 2 of write boundary web-$library belongs to $library-b" --previous
  is "the object of $library" "$library-b" "$(object configmap "web-$library" '{.data.owner}')"
done
kubectl logs -n shop controller-runtime-a --previous > "$work/refusals"
grep --max-count=1 refused "$work/refusals"

step "It can win again, in a new term, and write"
for library in "${libraries[@]}"; do kubectl delete pod -n shop "$library-b" --grace-period=0 --force > /dev/null 2>&1; done
for library in "${libraries[@]}"; do
  until_true "$library-a did not win again: $(grant_of "web-$library")" active_for "web-$library" 3 "$library-a_"
  until_true "$library-a does not write again" owner_is "$library" "$library-a"
done

step "A Deployment is guarded: its own controllers and a rollout go on, a rollout by somebody else does not"
kubectl apply -n shop -f - > /dev/null << D
apiVersion: apps/v1
kind: Deployment
metadata: {name: rolled}
spec:
  selector: {matchLabels: {app: rolled}}
  template:
    metadata: {labels: {app: rolled}}
    spec: {containers: [{name: pause, image: "localhost/pause:1", imagePullPolicy: Never}]}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: rolled}
spec: {holderIdentity: kube-rs-a, leaseDurationSeconds: 3600, leaseTransitions: 0}
D
guarded rolled deployments apps '{user: deployer, reason: rolls out}'
until_true "the Deployment is not fenced: $(grant_of rolled)" active_for rolled 1 kube-rs-a
if kubectl rollout restart -n shop deployment/rolled > "$work/refused" 2>&1; then fail "somebody rolled it out"; fi
grep -q 'epoch 1 of write boundary rolled belongs to kube-rs-a' "$work/refused" || fail "the refusal does not say why: $(cat "$work/refused")"
if kubectl scale -n shop deployment/rolled --replicas=2 > "$work/refused" 2>&1; then fail "somebody scaled it"; fi
grep -q 'write deployments.apps/rolled/scale' "$work/refused" || fail "the refusal does not say why: $(cat "$work/refused")"
kubectl create role -n shop deployer --verb='*' --resource=deployments.apps,configmaps,secrets > /dev/null
kubectl create rolebinding -n shop deployer --role=deployer --user=deployer > /dev/null
kubectl rollout restart -n shop deployment/rolled --as deployer > /dev/null || fail "who is exempt may not roll it out"
kubectl rollout status -n shop deployment/rolled --timeout=60s > /dev/null || fail "the rollout does not end"
is "the revision that the Deployment's own controller writes" 2 "$(object deployment rolled '{.metadata.annotations.deployment\.kubernetes\.io/revision}')"
passed=$((passed + 3))

step "helm upgrade by a user who is exempt, and by one who is not"
mkdir -p "$work/settings/templates"
printf 'apiVersion: v2\nname: settings\nversion: 1.0.0\n' > "$work/settings/Chart.yaml"
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: "{{ .Values.color }}"}\n' > "$work/settings/templates/settings.yaml"
helm install settings "$work/settings" --namespace shop --set color=red > /dev/null
kubectl apply -n shop -f - > /dev/null << D
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: settings}
spec: {holderIdentity: kube-rs-a, leaseDurationSeconds: 3600, leaseTransitions: 0}
D
guarded settings configmaps "" '{user: deployer, reason: installs}'
until_true "the ConfigMap is not fenced: $(grant_of settings)" active_for settings 1 kube-rs-a
if helm upgrade settings "$work/settings" --namespace shop --set color=blue > "$work/refused" 2>&1; then fail "Helm wrote what it does not own"; fi
grep -q 'fencedlock: ' "$work/refused" || fail "the refusal does not say why: $(cat "$work/refused")"
helm upgrade settings "$work/settings" --namespace shop --set color=green --kube-as-user deployer > /dev/null || fail "who is exempt may not upgrade"
is "what Helm wrote" green "$(object configmap settings '{.data.color}')"
passed=$((passed + 2))

step "What belongs to an object that is deleted is collected, fence or not; and so is all of a namespace"
kubectl create configmap -n shop parent > /dev/null
parent=$(object configmap parent '{.metadata.uid}')
kubectl patch configmap -n shop settings --as deployer --type=merge -p \
  "{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"name\":\"parent\",\"uid\":\"$parent\"}]}}" > /dev/null
if kubectl delete configmap -n shop settings > /dev/null 2>&1; then fail "somebody deleted a guarded object"; fi
kubectl delete configmap -n shop parent > /dev/null
kubectl wait -n shop configmap/settings --for=delete --timeout=60s > /dev/null || fail "the garbage collector was refused"
kubectl delete namespace shop --timeout=90s > /dev/null || fail "the namespace did not go away"
passed=$((passed + 3))
