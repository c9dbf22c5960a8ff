# shellcheck shell=bash disable=SC2154
# The demo's second story: Kubernetes objects, and controllers that know nothing of fencing. Sourced by hack/demo.sh, whose functions it uses.

# A pod that no kubelet starts, and a kubeconfig with a token that is bound to it, as the kubelet would project it: bound NAMESPACE ACCOUNT POD
bound() {
  local uid token
  kubectl apply -n "$1" -f - > /dev/null << P
apiVersion: v1
kind: Pod
metadata: {name: $3}
spec:
  serviceAccountName: $2
  containers: [{name: controller, image: controller}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {path: token}}]}}]
P
  uid=$(kubectl get pod -n "$1" "$3" -o 'jsonpath={.metadata.uid}')
  token=$(kubectl create token "$2" -n "$1" --bound-object-kind Pod --bound-object-name "$3" --bound-object-uid "$uid")
  cp "$work/admin" "$work/$3"
  kubectl config --kubeconfig "$work/$3" set-credentials "$3" --token="$token" > /dev/null
  kubectl config --kubeconfig "$work/$3" set-context --current --user="$3" > /dev/null
}
# The controller of a pod: it leads, reads the ConfigMap, thinks for a second, and patches it.
controller() {
  bound demo web-controller "$1"
  start "$work/$1.log" env KUBECONFIG="$work/$1" "$FENCEDLOCK_TOOLS/controller" --host "$1" --namespace demo --lease web-controller --object web
}
web() { printf '\n$ kubectl get configmap web -o jsonpath={.data}\n%s\n' "$(kubectl get configmap web -o 'jsonpath={.data}')"; }
# Waits until a controller's last line names an event.
until_last() {
  local began=$SECONDS
  until tail -n 1 "$work/$1.log" 2> /dev/null | grep -q "\"event\":\"$2\""; do
    [ $((SECONDS - began)) -lt 40 ] || { echo "demo: $1 did not say $2:" >&2; cat "$work/$1.log" >&2; exit 1; }
    sleep 0.05
  done
}

# The story.
objects() {
  step "Second story: Kubernetes objects. The chart's admission policies, and a controller that knows nothing of fencing"
  "$FENCEDLOCK_TOOLS/helm" template fencedlock charts/fencedlock --namespace fencedlock --show-only templates/guard.yaml --set guard.named=true \
    --api-versions admissionregistration.k8s.io/v1/MutatingAdmissionPolicy | kubectl apply -f - | sed 's/^/  /'
  kubectl create serviceaccount web-controller > /dev/null
  kubectl create role web-controller --verb=get,list,watch,create,update,patch --resource=configmaps,leases.coordination.k8s.io > /dev/null
  kubectl create rolebinding web-controller --role=web-controller --serviceaccount=demo:web-controller > /dev/null
  kubectl create configmap web > /dev/null
  kubectl create role fence-configmaps --verb=get,list,watch,patch --resource=configmaps > /dev/null
  kubectl create rolebinding fence-configmaps --role=fence-configmaps --serviceaccount=fencedlock:fencedlock > /dev/null
  kubectl label namespace demo fencedlock.dev/named=true > /dev/null
  kubectl apply -f examples/kubernetes | sed 's/^/  /'
  controller web-0
  local first=${pids[-1]}
  await web-controller '{.status.verdict}' Enforced
  until_logged web-0 wrote
  printf '\n$ kubectl get fencedlock web-controller -o wide\n'
  kubectl get fencedlock web-controller -o wide
  printf '\n$ kubectl get writeboundary web-objects -o wide\n'
  kubectl get writeboundary web-objects -o wide
  web

  step "web-0 stalls between its read and its write (SIGSTOP). web-1 takes over, and writes"
  until_last web-0 read
  kill -STOP "$first"
  controller web-1
  until_logged web-1 wrote
  web

  step "web-0 wakes up (SIGCONT) and writes what it had worked out. The API server refuses it"
  kill -CONT "$first"
  until_logged web-0 refused
  grep -h refused "$work/web-0.log" | head -n 1 | sed 's/^/  web-0: /'
  web
  note ""
  note "web-0 runs on controller-runtime, unmodified. It sees a Forbidden, loses its Lease, and ends."
  printf '\n$ kubectl annotate configmap web note=mine          # cluster-admin does not own it either\n'
  kubectl annotate configmap web note=mine 2>&1 | sed 's/^/  /' || true
}
