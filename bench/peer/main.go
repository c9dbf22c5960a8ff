// Command peer does the operator's watching and status work the way operators in Go do it, with controller-runtime: it follows
// FencedLocks, WriteBoundaries, Leases and pods, mints epochs on uncached reads and reserved blocks, and writes verdict, grant and
// conditions. `make bench` measures the operator beside it. It is tuned as good operators are: managed fields are stripped from the
// caches, pods are watched by their metadata, renewals are dropped before the queue, the client's rate limit is off.
//
// It activates and proves nothing, and survives no restore: it is a yardstick, not a product.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	byLease = "spec.coordinator.lease.name"
	byLock  = "spec.lockRef.name"
	block   = 1000
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("from", "", "kubeconfig `file`")
	listen := flag.String("listen", "0", "`address` of /metrics")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	scheme.AddKnownTypes(group, &FencedLock{}, &FencedLockList{}, &WriteBoundary{}, &WriteBoundaryList{})
	metav1.AddToGroupVersion(scheme, group)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: server.Options{BindAddress: *listen},
		Cache:   cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return err
	}
	ctx := ctrl.SetupSignalHandler()
	if err := index(ctx, mgr); err != nil {
		return err
	}
	r := &reconciler{client: mgr.GetClient(), uncached: mgr.GetAPIReader()}
	err = ctrl.NewControllerManagedBy(mgr).
		For(&FencedLock{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&coordinationv1.Lease{}, handler.EnqueueRequestsFromMapFunc(r.locksOf(byLease)), builder.WithPredicates(ownerChanged())).
		Watches(&WriteBoundary{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.(*WriteBoundary).Spec.LockRef.Name}}}
		})).
		WatchesMetadata(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return nil })).
		WithOptions(controller.Options{MaxConcurrentReconciles: 16}).
		Complete(r)
	if err != nil {
		return err
	}
	return mgr.Start(ctx)
}

func index(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.GetFieldIndexer().IndexField(ctx, &FencedLock{}, byLease, func(o client.Object) []string {
		if lease := o.(*FencedLock).Spec.Coordinator.Lease; lease != nil {
			return []string{lease.Name}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return mgr.GetFieldIndexer().IndexField(ctx, &WriteBoundary{}, byLock, func(o client.Object) []string {
		return []string{o.(*WriteBoundary).Spec.LockRef.Name}
	})
}

// ownerChanged drops renewals.
func ownerChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, after := e.ObjectOld.(*coordinationv1.Lease).Spec, e.ObjectNew.(*coordinationv1.Lease).Spec
		return !equality.Semantic.DeepEqual(before.HolderIdentity, after.HolderIdentity) ||
			!equality.Semantic.DeepEqual(before.LeaseTransitions, after.LeaseTransitions) ||
			!equality.Semantic.DeepEqual(before.AcquireTime, after.AcquireTime)
	}}
}

type reconciler struct {
	client   client.Client
	uncached client.Reader
}

func (r *reconciler) locksOf(field string) handler.MapFunc {
	return func(ctx context.Context, o client.Object) []reconcile.Request {
		var locks FencedLockList
		if err := r.client.List(ctx, &locks, client.InNamespace(o.GetNamespace()), client.MatchingFields{field: o.GetName()}); err != nil {
			return nil
		}
		requests := make([]reconcile.Request, 0, len(locks.Items))
		for i := range locks.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&locks.Items[i])})
		}
		return requests
	}
}

func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var lock FencedLock
	if err := r.client.Get(ctx, request.NamespacedName, &lock); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := lock.copy()
	if err := r.grant(ctx, &lock); err != nil {
		return retry(err)
	}
	var boundaries WriteBoundaryList
	if err := r.client.List(ctx, &boundaries, client.InNamespace(lock.Namespace), client.MatchingFields{byLock: lock.Name}); err != nil {
		return reconcile.Result{}, err
	}
	judge(&lock, len(boundaries.Items))
	if equality.Semantic.DeepEqual(before.Status, lock.Status) {
		return reconcile.Result{}, nil
	}
	return retry(r.client.Status().Update(ctx, &lock))
}

func retry(err error) (reconcile.Result, error) {
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: 1}, nil
	}
	return reconcile.Result{}, err
}

// grant mints an epoch when the Lease shows another term than the one that was recorded.
func (r *reconciler) grant(ctx context.Context, lock *FencedLock) error {
	if lock.Spec.Coordinator.Lease == nil {
		return nil
	}
	key := types.NamespacedName{Namespace: lock.Namespace, Name: lock.Spec.Coordinator.Lease.Name}
	var lease coordinationv1.Lease
	if err := r.client.Get(ctx, key, &lease); client.IgnoreNotFound(err) != nil {
		return err
	}
	if sameTerm(lock.Status.Grant, &lease) {
		return nil
	}
	if err := r.uncached.Get(ctx, key, &lease); client.IgnoreNotFound(err) != nil {
		return err
	}
	if sameTerm(lock.Status.Grant, &lease) {
		return nil
	}
	if holder(&lease) == "" {
		lock.Status.Grant = nil
		return nil
	}
	epoch, err := r.reserve(ctx, lock)
	if err != nil {
		return err
	}
	lock.Status.Epoch = epoch
	lock.Status.Grant = &Grant{Epoch: epoch, Holder: holder(&lease), State: "Active", Since: metav1.Now().Rfc3339Copy(), Term: Term{
		LeaseUID: string(lease.UID), LeaseTransitions: lease.Spec.LeaseTransitions, AcquireTime: lease.Spec.AcquireTime,
		ResourceVersion: lease.ResourceVersion,
	}}
	return nil
}

func holder(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

func sameTerm(grant *Grant, lease *coordinationv1.Lease) bool {
	if grant == nil {
		return holder(lease) == ""
	}
	before, after := int32(0), int32(0)
	if grant.Term.LeaseTransitions != nil {
		before = *grant.Term.LeaseTransitions
	}
	if lease.Spec.LeaseTransitions != nil {
		after = *lease.Spec.LeaseTransitions
	}
	return grant.Holder == holder(lease) && grant.Term.LeaseUID == string(lease.UID) &&
		(after <= before || grant.Term.AcquireTime.Equal(lease.Spec.AcquireTime))
}

// reserve says the next epoch, after a block that contains it was reserved in the namespace's ConfigMap.
func (r *reconciler) reserve(ctx context.Context, lock *FencedLock) (int64, error) {
	var epochs corev1.ConfigMap
	err := r.uncached.Get(ctx, types.NamespacedName{Namespace: lock.Namespace, Name: "fencedlock-epochs"}, &epochs)
	if client.IgnoreNotFound(err) != nil {
		return 0, err
	}
	last, uid, _ := strings.Cut(epochs.Data[lock.Name], " ")
	reserved, _ := strconv.ParseInt(last, 10, 64)
	next := lock.Status.Epoch + 1
	if isOurs := uid == string(lock.UID) && reserved-block < lock.Status.Epoch && lock.Status.Epoch <= reserved; !isOurs {
		next = max(next, reserved+1)
	}
	if next <= reserved {
		return next, nil
	}
	if epochs.Data == nil {
		epochs.Data = map[string]string{}
	}
	epochs.Data[lock.Name] = fmt.Sprintf("%d %s", next+block-1, lock.UID)
	if apierrors.IsNotFound(err) {
		epochs.ObjectMeta = metav1.ObjectMeta{Namespace: lock.Namespace, Name: "fencedlock-epochs"}
		return next, r.client.Create(ctx, &epochs)
	}
	return next, r.client.Update(ctx, &epochs)
}

func judge(lock *FencedLock, boundaries int) {
	status := &lock.Status
	status.ObservedGeneration = lock.Generation
	set := func(kind string, ok bool, reason, message string) {
		is := metav1.ConditionFalse
		if ok {
			is = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{Type: kind, Status: is, Reason: reason, Message: message, ObservedGeneration: lock.Generation})
	}
	isCritical := lock.Spec.Class == "CorrectnessCritical"
	switch {
	case !isCritical:
		status.Verdict, status.Reason, status.BoundarySummary = "NotRequired", "EfficiencyOnly", ""
	case boundaries == 0:
		status.Verdict, status.Reason, status.BoundarySummary = "Unenforced", "NoBoundaryRegistered", "0/0"
	default:
		status.Verdict, status.Reason, status.BoundarySummary = "Unproven", "NotProven", fmt.Sprintf("0/%d", boundaries)
	}
	set("Ready", true, "Evaluated", "this generation has been evaluated; the verdict is in Compliant")
	set("Compliant", !isCritical, status.Reason, "the peer says so")
	set("BoundaryRegistered", boundaries > 0, status.Reason, "the peer says so")
	set("BoundaryEnforced", false, status.Reason, "the peer proves nothing")
	set("EpochActive", status.Grant != nil, "Granted", fmt.Sprintf("epoch %d", status.Epoch))
	set("EpochMonotonic", true, "Rising", "the peer does not look")
	set("OwnerUnique", false, "NotAPod", "the peer does not look")
}
