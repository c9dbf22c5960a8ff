#!/usr/bin/env bash
# The first process of the node's namespaces: network, control plane, container runtime, kubelet. Called by up.sh with TOOLS, WORK
# and IMAGES in the environment.
set -euo pipefail
export PATH=$TOOLS:$PATH
echo "$TOOLS" > "$WORK/tools"
mkdir -p "$WORK"/{cp,etc,ctd,opt,kubelet,pods,logs,cni}
cd "$WORK/cp"

# The API server listens on the ClusterIP of the Service kubernetes, so that pods need no kube-proxy to reach it.
ip link set lo up
ip addr add 10.0.0.1/32 dev lo
ip link add node0 type veth peer name node0p
ip link set node0p up
ip addr add 10.99.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.99.0.254 dev node0
echo 1 > /proc/sys/net/ipv4/ip_forward

openssl genrsa -out sa.key 2048 2> /dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2> /dev/null
echo 'admintoken,admin,admin,system:masters' > tokens.csv
etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 \
  --listen-peer-urls http://127.0.0.1:12380 > etcd.log 2>&1 &
kube-apiserver --etcd-servers=http://127.0.0.1:12379 --secure-port=443 --bind-address=0.0.0.0 --advertise-address=10.99.0.1 --cert-dir=certs \
  --service-account-issuer=https://kubernetes.default.svc --service-account-key-file=sa.pub --service-account-signing-key-file=sa.key \
  --service-cluster-ip-range=10.0.0.0/24 --token-auth-file=tokens.csv --authorization-mode=RBAC --allow-privileged \
  --kubelet-preferred-address-types=InternalIP > apiserver.log 2>&1 &
cat > kubeconfig << K
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "https://10.0.0.1:443", certificate-authority: $WORK/cp/certs/apiserver.crt}}]
users: [{name: admin, user: {token: admintoken}}]
contexts: [{name: node, context: {cluster: node, user: admin}}]
current-context: node
K
export KUBECONFIG=$WORK/cp/kubeconfig
until kubectl get --raw /readyz > /dev/null 2>&1; do sleep 0.25; done
kube-controller-manager --kubeconfig=kubeconfig --service-account-private-key-file=sa.key --root-ca-file=certs/apiserver.crt \
  --use-service-account-credentials --leader-elect=false > kcm.log 2>&1 &
kube-scheduler --kubeconfig=kubeconfig --leader-elect=false --secure-port=0 > sched.log 2>&1 &

# A peer group of its own: nothing propagates back.
mount --make-rprivate /
mount --make-rshared /
umount -R /sys/fs/cgroup 2> /dev/null || true
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir "/sys/fs/cgroup/$controller"
  mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd || true
mount -t tmpfs tmpfs /run
mkdir -p /run/containerd /run/lock
mount -t tmpfs tmpfs /var/log
mkdir -p /var/log/pods /var/log/containers
mount --bind "$WORK/pods" /var/log/pods
mount -t tmpfs tmpfs /var/lib
mkdir -p /var/lib/kubelet /var/lib/cni
mount --bind "$WORK/kubelet" /var/lib/kubelet

# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc could not lower the score and dies.
cat > "$WORK/etc/containerd.toml" << T
version = 3
root = "$WORK/ctd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp"]
[plugins.'io.containerd.internal.v1.opt']
path = "$WORK/opt"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["$TOOLS"]
conf_dir = "$WORK/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "$TOOLS/runc"
T
cat > "$WORK/etc/kubelet.yaml" << T
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 0
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
resolvConf: ""
clusterDomain: cluster.local
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "50Mi"}
makeIPTablesUtilChains: false
T
cat > "$WORK/cni/10-net.conflist" << T
{"cniVersion":"1.0.0","name":"node","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,
 "ipam":{"type":"host-local","dataDir":"/run/cni-ipam","ranges":[[{"subnet":"10.88.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
T
containerd -c "$WORK/etc/containerd.toml" > "$WORK/logs/containerd.log" 2>&1 &
until ctr -a /run/containerd/containerd.sock version > /dev/null 2>&1; do sleep 0.2; done
for image in "$IMAGES"/*.tar; do ctr -a /run/containerd/containerd.sock -n k8s.io images import "$image"; done
kubelet --config "$WORK/etc/kubelet.yaml" --kubeconfig "$KUBECONFIG" --root-dir /var/lib/kubelet --cert-dir /var/lib/kubelet/pki \
  --hostname-override node1 --node-ip 10.99.0.1 --v=2 > "$WORK/logs/kubelet.log" 2>&1 &
wait $!
