// Command controller is an ordinary controller with leader election, written as people write them who never heard of fencing: on
// controller-runtime, with a cache, or on client-go, with a loop that reads, modifies and tries again at a conflict. It owns one ConfigMap and
// writes its host's name and a growing number into it: the former patches what its cache shows, however old, the latter updates. The tests stall it
// between its read and its write.
//
// It prints one JSON object per line:
//
//	{"event":"leading"}                 it acquired the Lease
//	{"event":"read","n":N}              it has read the object and works out what to write
//	{"event":"wrote","n":N}             the write was accepted
//	{"event":"refused","message":…}     the write was refused
//
// A lost Lease ends it with 1, as both libraries recommend, once the write that is under way is done.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

var (
	namespace = flag.String("namespace", "default", "`namespace` of the Lease and the ConfigMap")
	lease     = flag.String("lease", "", "`name` of the Lease")
	object    = flag.String("object", "", "`name` of the ConfigMap that it owns")
	think     = flag.Duration("think", time.Second, "time between its read and its write")
	library   = flag.String("library", "controller-runtime", "controller-runtime or client-go")
	host      = flag.String("host", "", "its `name`: the machine's, which in a pod is the pod's, when absent")
)

const leaseDuration, renewDeadline, retryPeriod = 6 * time.Second, 4 * time.Second, time.Second

var stdout sync.Mutex

func emit(event string, fields map[string]any) {
	stdout.Lock()
	defer stdout.Unlock()
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

func main() {
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	if *host == "" {
		*host, _ = os.Hostname()
	}
	config, err := ctrl.GetConfig()
	if err == nil && *library == "client-go" {
		err = clientGo(config)
	} else if err == nil {
		err = controllerRuntime(config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controller:", err)
		os.Exit(1)
	}
}

// change is what the controller does to its object.
func change(configMap *corev1.ConfigMap, pause time.Duration) int {
	n, _ := strconv.Atoi(configMap.Data["n"])
	emit("read", map[string]any{"n": n})
	time.Sleep(pause)
	if configMap.Data == nil {
		configMap.Data = map[string]string{}
	}
	configMap.Data["owner"], configMap.Data["n"] = *host, strconv.Itoa(n+1)
	return n + 1
}

func told(n int, err error) error {
	switch {
	case err == nil:
		emit("wrote", map[string]any{"n": n})
	case apierrors.IsForbidden(err):
		emit("refused", map[string]any{"message": err.Error()})
	}
	return err
}

type reconciler struct{ client.Client }

func (r reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	// What was begun is finished, also when the manager stops.
	ctx = context.WithoutCancel(ctx)
	var configMap corev1.ConfigMap
	if err := r.Get(ctx, request.NamespacedName, &configMap); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	before := configMap.DeepCopy()
	n := change(&configMap, *think)
	if err := told(n, r.Patch(ctx, &configMap, client.MergeFrom(before))); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: 100 * time.Millisecond}, nil
}

// lock is what both libraries compete for, with the identity that controller-runtime makes by itself.
func lock(clients kubernetes.Interface) resourcelock.Interface {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *lease},
		Client:     clients.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: *host + "_" + string(uuid.NewUUID())},
	}
}

func controllerRuntime(config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	duration, deadline, retry := leaseDuration, renewDeadline, retryPeriod
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		LeaderElection: true, LeaderElectionResourceLockInterface: lock(clients),
		LeaseDuration: &duration, RenewDeadline: &deadline, RetryPeriod: &retry,
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{*namespace: {}}},
		Metrics: server.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	leading := manager.RunnableFunc(func(context.Context) error { emit("leading", nil); return nil })
	own := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetName() == *object })
	built := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).WithEventFilter(own).Complete(reconciler{mgr.GetClient()})
	if err := errors.Join(built, mgr.Add(leading)); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}

func clientGo(config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	leaderelection.RunOrDie(ctrl.SetupSignalHandler(), leaderelection.LeaderElectionConfig{
		Lock:          lock(clients),
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				emit("leading", nil)
				work.Add(1)
				defer work.Done()
				wait.UntilWithContext(ctx, func(context.Context) { _ = write(clients) }, 100*time.Millisecond)
			},
			OnStoppedLeading: func() {
				work.Wait()
				os.Exit(1)
			},
		},
	})
	return nil
}

func write(clients kubernetes.Interface) error {
	ctx, configMaps := context.Background(), clients.CoreV1().ConfigMaps(*namespace)
	pause := *think
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		configMap, err := configMaps.Get(ctx, *object, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n := change(configMap, pause)
		// It knows what to write; at a conflict it tries again at once.
		pause = 0
		_, err = configMaps.Update(ctx, configMap, metav1.UpdateOptions{})
		return told(n, err)
	})
}
