// Command manager is an ordinary controller-runtime manager with leader election, as most operators in Go run it. The tests use it to
// show that unmodified controllers get epochs. It prints one JSON object per line: {"event":"leading"} once it is elected.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func run() error {
	kubeconfig := flag.String("from", "", "kubeconfig `file`")
	namespace := flag.String("namespace", "default", "namespace of the Lease")
	lease := flag.String("lease", "", "`name` of the Lease")
	id := flag.String("id", "", "holder `identity`; controller-runtime's own, <host>_<uuid>, when absent")
	release := flag.Bool("release-on-cancel", false, "empty the Lease at the end instead of letting it expire")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	duration, deadline, retry := 3*time.Second, 2*time.Second, 500*time.Millisecond
	options := ctrl.Options{
		LeaderElection: true, LeaderElectionID: *lease, LeaderElectionNamespace: *namespace, LeaderElectionReleaseOnCancel: *release,
		LeaseDuration: &duration, RenewDeadline: &deadline, RetryPeriod: &retry,
		Metrics: server.Options{BindAddress: "0"},
	}
	if *id != "" {
		clients, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		options.LeaderElectionResourceLockInterface, err = resourcelock.New(resourcelock.LeasesResourceLock, *namespace, *lease,
			clients.CoreV1(), clients.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: *id})
		if err != nil {
			return err
		}
	}
	mgr, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	err = mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		fmt.Println(`{"event":"leading"}`)
		<-ctx.Done()
		return nil
	}))
	if err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
