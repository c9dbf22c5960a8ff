// Command elector is an ordinary client-go leader election, as thousands of controllers run it: the tests use it to show that
// unmodified clients get epochs.
//
// It prints one JSON object per line on stdout (client-go's own log goes to stderr):
//
//	{"event":"observed","leader":ID}         somebody, perhaps this process, is seen to lead
//	{"event":"leading","id":ID}              this process acquired the lease
//	{"event":"epoch","id":ID,"epoch":N}      with --lock: the grant for this very acquisition is active
//	{"event":"superseded","id":ID,"epoch":N,"by":M}   with --lock: a newer epoch exists; this process stops
//	{"event":"stopped","id":ID}              this process leads no more; never printed by one that did not lead
//
// SIGTERM and SIGINT end it with 0, after a release when --release-on-cancel is set. A lost lease or a newer epoch ends it with 3,
// anything else with 1.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	watchtools "k8s.io/client-go/tools/watch"
)

// exitLost is what a supervisor sees when leadership was taken away, as opposed to given up.
const exitLost = 3

var fencedLocks = schema.GroupVersionResource{Group: "fencedlock.dev", Version: "v1alpha1", Resource: "fencedlocks"}

type options struct {
	kubeconfig, namespace, lease, id, lock    string
	leaseDuration, renewDeadline, retryPeriod time.Duration
	releaseOnCancel                           bool
}

type event struct {
	Event  string `json:"event"`
	ID     string `json:"id,omitempty"`
	Leader string `json:"leader,omitempty"`
	Epoch  int64  `json:"epoch,omitempty"`
	By     int64  `json:"by,omitempty"`
}

// client-go calls back from several goroutines; a line must come out whole.
var stdout sync.Mutex

func emit(e event) {
	stdout.Lock()
	defer stdout.Unlock()
	// A reader that is gone ends this process by SIGPIPE, which is what a test that died needs.
	_ = json.NewEncoder(os.Stdout).Encode(e)
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`; in a pod the service account is used when it is absent")
	flag.StringVar(&o.namespace, "namespace", "default", "namespace of the Lease and the FencedLock")
	flag.StringVar(&o.lease, "lease", "", "`name` of the Lease")
	flag.StringVar(&o.id, "id", "", "holder `identity`")
	flag.StringVar(&o.lock, "lock", "", "`name` of a FencedLock in the same namespace: wait for its grant after each acquisition")
	flag.DurationVar(&o.leaseDuration, "lease-duration", 15*time.Second, "how long others wait for a renewal before they take over")
	flag.DurationVar(&o.renewDeadline, "renew-deadline", 10*time.Second, "how long this process tries to renew before it gives up")
	flag.DurationVar(&o.retryPeriod, "retry-period", 2*time.Second, "pause between two attempts")
	flag.BoolVar(&o.releaseOnCancel, "release-on-cancel", false, "empty the Lease on SIGTERM instead of letting it expire")
	flag.Parse()

	if o.lease == "" || o.id == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "elector: --lease and --id are required, positional arguments are not taken")
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "elector:", err)
		if errors.Is(err, errLost) {
			os.Exit(exitLost)
		}
		os.Exit(1)
	}
}

var errLost = errors.New("leadership was lost")

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()

	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}

	var led atomic.Bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.namespace, Name: o.lease},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.id},
		},
		Name:            o.lease,
		LeaseDuration:   o.leaseDuration,
		RenewDeadline:   o.renewDeadline,
		RetryPeriod:     o.retryPeriod,
		ReleaseOnCancel: o.releaseOnCancel,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				led.Store(true)
				emit(event{Event: "leading", ID: o.id})
				if o.lock == "" {
					return
				}
				if err := followGrant(ctx, config, client, o); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "elector:", err)
					os.Exit(1)
				}
			},
			OnStoppedLeading: func() {
				// client-go calls this for a candidate that never led, too.
				if led.Load() {
					emit(event{Event: "stopped", ID: o.id})
				}
			},
			OnNewLeader: func(leader string) { emit(event{Event: "observed", Leader: leader}) },
		},
	})
	if err != nil {
		return err
	}

	elector.Run(ctx)
	if ctx.Err() == nil {
		return errLost
	}
	return nil
}

// term is what tells one acquisition of a Lease from the next, by the same holder included.
type term struct {
	leaseUID    string
	transitions int64
	acquired    time.Time
}

// followGrant waits for the grant of the present acquisition, announces its epoch, and ends the process when a newer one exists.
//
// The epoch is taken once and never looked up again: a worker that reads it at write time hands itself its successor's number.
func followGrant(ctx context.Context, config *rest.Config, client kubernetes.Interface, o options) error {
	own, err := readTerm(ctx, client, o)
	if err != nil {
		return err
	}
	locks, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	// By name, so that a Role with resourceNames is enough.
	only := fields.OneTermEqualSelector("metadata.name", o.lock).String()
	resource := locks.Resource(fencedLocks).Namespace(o.namespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, lo metav1.ListOptions) (runtime.Object, error) {
			lo.FieldSelector = only
			return resource.List(ctx, lo)
		},
		WatchFuncWithContext: func(ctx context.Context, lo metav1.ListOptions) (watch.Interface, error) {
			lo.FieldSelector = only
			return resource.Watch(ctx, lo)
		},
	}

	var epoch, by int64
	granted := func(e watch.Event) (bool, error) {
		lock, ok := live(e)
		if !ok || !grants(lock, o.id, own) {
			return false, nil
		}
		epoch, _, _ = unstructured.NestedInt64(lock.Object, "status", "grant", "epoch")
		emit(event{Event: "epoch", ID: o.id, Epoch: epoch})
		return true, nil
	}
	passed := func(e watch.Event) (bool, error) {
		lock, ok := live(e)
		if !ok {
			return false, nil
		}
		by, _, _ = unstructured.NestedInt64(lock.Object, "status", "epoch")
		return by > epoch, nil
	}
	// Survives what a bare watch does not: a closed connection, an API server that restarts, a version that is too old.
	if _, err := watchtools.UntilWithSync(ctx, source, &unstructured.Unstructured{}, nil, granted, passed); err != nil {
		return fmt.Errorf("follow FencedLock %s/%s: %w", o.namespace, o.lock, err)
	}

	emit(event{Event: "superseded", ID: o.id, Epoch: epoch, By: by})
	emit(event{Event: "stopped", ID: o.id})
	// At once and without a release: what the Lease says is the successor's business now.
	os.Exit(exitLost)
	return nil
}

// readTerm reads what this process wrote when it acquired the Lease. An API server that is away is waited for: losing the lease
// meanwhile cancels ctx.
func readTerm(ctx context.Context, client kubernetes.Interface, o options) (term, error) {
	var own term
	err := wait.PollUntilContextCancel(ctx, o.retryPeriod, true, func(ctx context.Context) (bool, error) {
		lease, err := client.CoordinationV1().Leases(o.namespace).Get(ctx, o.lease, metav1.GetOptions{})
		if err != nil {
			fmt.Fprintln(os.Stderr, "elector: reading the Lease again:", err)
			return false, nil
		}
		// Somebody else's term must never be taken for ours; the election is about to notice, too.
		if holder(lease) != o.id || lease.Spec.AcquireTime == nil || lease.Spec.LeaseTransitions == nil {
			return false, nil
		}
		own = term{string(lease.UID), int64(*lease.Spec.LeaseTransitions), lease.Spec.AcquireTime.Time}
		return true, nil
	})
	return own, err
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// live returns the FencedLock that an event carries, unless the event says that it is gone.
func live(e watch.Event) (*unstructured.Unstructured, bool) {
	lock, ok := e.Object.(*unstructured.Unstructured)
	return lock, ok && e.Type != watch.Deleted
}

// grants tells whether the lock's grant is active, names id and carries own. After a quick release and re-acquisition the previous
// grant still names the same holder; only the term tells it from the new one.
func grants(lock *unstructured.Unstructured, id string, own term) bool {
	grant, _, _ := unstructured.NestedMap(lock.Object, "status", "grant")
	state, _, _ := unstructured.NestedString(grant, "state")
	to, _, _ := unstructured.NestedString(grant, "holder")
	leaseUID, _, _ := unstructured.NestedString(grant, "term", "leaseUid")
	transitions, found, _ := unstructured.NestedInt64(grant, "term", "leaseTransitions")
	text, _, _ := unstructured.NestedString(grant, "term", "acquireTime")
	// By value: two spellings of one instant are one term.
	acquired, err := time.Parse(time.RFC3339Nano, text)
	return err == nil && found && state == "Active" && to == id &&
		leaseUID == own.leaseUID && transitions == own.transitions && acquired.Equal(own.acquired)
}
