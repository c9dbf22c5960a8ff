// Command controlplane runs a real etcd and kube-apiserver for as long as its stdin is open.
//
// It starts the two binaries in $KUBEBUILDER_ASSETS through controller-runtime's envtest, on free ports, with certificates of their
// own, RBAC on and service account tokens working. When the API server is ready it prints one line:
//
//	{"kubeconfig":…,"server":…,"etcd":…,"auditLog":…,"pids":{"etcd":N,"apiserver":N},"readyMillis":N}
//
// Then it obeys one command per line on stdin, `stop-apiserver` and `start-apiserver` (same port, same data), `stop` and `start` (both
// processes, etcd's data as it lies in the work directory by then), and answers each with {"ok":COMMAND,"pids":…} or {"error":…}; a pid of
// 0 means not running. A test that killed the API server by its pid sends stop-apiserver, too, and then start-apiserver: the first waits
// until the process is gone. On end of input, SIGINT or SIGTERM it stops both and exits with 0.
//
// Nothing outlives it, whatever ends it. Each child is started through this same executable, which asks the kernel for SIGKILL upon
// the death of its parent and then becomes the real binary; see become. That makes the program Linux only.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

const (
	etcdName      = "etcd"
	apiserverName = "kube-apiserver"

	assetsVariable = "KUBEBUILDER_ASSETS"
	// parentVariable carries the launcher's pid to its children, which have to know whether it is still there.
	parentVariable = "FENCEDLOCK_CONTROLPLANE_PID"

	// envtest's default of 20 s is too short for two busy cores.
	patience = time.Minute
	// grace is how long a child may take to stop by itself; without open watches both need about a second.
	grace = 2 * time.Second
)

// One line per response is what the tests count, and enough to count: who did what to which object. Request bodies would put
// secrets on disk.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

func init() {
	// The kernel delivers a parent death signal when the *thread* that forked exits. Pinned here, the main goroutine owns the main
	// thread, which lives as long as the process; every child is started from it.
	runtime.LockOSThread()
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == etcdName || name == apiserverName {
		fmt.Fprintln(os.Stderr, "controlplane:", become(name))
		os.Exit(1)
	}
	dir := flag.String("dir", "", "work `directory`: certificates, etcd's data, kubeconfig, audit.log, logs; etcd's data is used again")
	audit := flag.Bool("audit", false, "write one line per response to audit.log in the work directory, before the client has the response")
	flag.Parse()
	if *dir == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "controlplane: --dir is required, positional arguments are not taken")
		os.Exit(2)
	}
	if err := run(*dir, *audit); err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
}

// become turns this process into the real binary name, bound to the launcher's life. It returns only when that fails.
func become(name string) error {
	parent, err := strconv.Atoi(os.Getenv(parentVariable))
	if err != nil {
		return fmt.Errorf("%s is started by controlplane, not by hand", name)
	}
	// The setting belongs to the calling thread, the one that init has pinned and that survives exec.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask for a signal upon the launcher's death: %w", err)
	}
	// A launcher that died before the request was made sends no signal any more.
	if os.Getppid() != parent {
		return errors.New("the launcher is gone")
	}
	// exec keeps the pid, and envtest does not tell it.
	if err := os.WriteFile(pidFile(filepath.Dir(os.Args[0]), name), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	binary := filepath.Join(os.Getenv(assetsVariable), name)
	return fmt.Errorf("execute %s: %w", binary, syscall.Exec(binary, append([]string{binary}, os.Args[1:]...), os.Environ()))
}

func pidFile(bin, name string) string { return filepath.Join(bin, name+".pid") }

type pids struct {
	Etcd      int `json:"etcd"`
	Apiserver int `json:"apiserver"`
}

type ready struct {
	Kubeconfig  string `json:"kubeconfig"`
	Server      string `json:"server"`
	Etcd        string `json:"etcd"`
	AuditLog    string `json:"auditLog,omitempty"`
	Pids        pids   `json:"pids"`
	ReadyMillis int64  `json:"readyMillis"`
}

type answer struct {
	OK    string `json:"ok,omitempty"`
	Error string `json:"error,omitempty"`
	Pids  *pids  `json:"pids,omitempty"`
}

// run is the whole life of a control plane. It stays on the main goroutine, because starting a child from another one would tie the
// child to a thread that comes and goes.
func run(dir string, audit bool) error {
	begun := time.Now()
	commands := readLines(os.Stdin)
	p, err := prepare(dir, audit)
	if err != nil {
		return err
	}
	defer p.closeLogs()
	if err := p.start(); err != nil {
		return err
	}
	// Not earlier: until here a signal simply ends this process, and the kernel its children.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)

	server := strings.TrimSuffix(p.admin.Host, "/")
	out := json.NewEncoder(os.Stdout)
	line := ready{p.kubeconfig(), server, p.plane.Etcd.URL.String(), p.auditLog(), p.pids(), time.Since(begun).Milliseconds()}
	if err := out.Encode(line); err != nil {
		return errors.Join(err, p.stop())
	}

	for {
		select {
		case <-signals:
			return p.stop()
		case command, open := <-commands:
			if !open {
				return p.stop()
			}
			if err := out.Encode(p.obey(command)); err != nil {
				return errors.Join(err, p.stop())
			}
		}
	}
}

// readLines delivers the lines of in and closes the channel at its end.
func readLines(in io.Reader) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(in)
		for scanner.Scan() {
			if line := strings.TrimSpace(scanner.Text()); line != "" {
				lines <- line
			}
		}
	}()
	return lines
}

// plane is a control plane and its work directory.
type plane struct {
	dir   string
	audit bool
	plane envtest.ControlPlane
	admin *rest.Config
	logs  []*os.File
}

func (p *plane) bin() string        { return filepath.Join(p.dir, "bin") }
func (p *plane) certs() string      { return filepath.Join(p.dir, "certs") }
func (p *plane) kubeconfig() string { return filepath.Join(p.dir, "kubeconfig") }

func (p *plane) auditLog() string {
	if !p.audit {
		return ""
	}
	return filepath.Join(p.dir, "audit.log")
}

// prepare lays out the work directory and describes both processes to envtest. It starts nothing.
func prepare(dir string, audit bool) (*plane, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, audit: audit}
	// envtest cannot load a certificate authority that it has written before, so each run gets new ones.
	if err := os.RemoveAll(p.certs()); err != nil {
		return nil, err
	}
	for _, d := range []string{p.bin(), p.certs(), filepath.Join(dir, "etcd")} {
		// etcd refuses a data directory that others can read.
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	if err := p.linkWrappers(); err != nil {
		return nil, err
	}
	return p, errors.Join(p.describeEtcd(), p.describeAPIServer())
}

// linkWrappers puts this executable in the place of both binaries.
func (p *plane) linkWrappers() error {
	assets, err := filepath.Abs(os.Getenv(assetsVariable))
	if err != nil || os.Getenv(assetsVariable) == "" {
		return fmt.Errorf("%s has to name the directory of etcd and kube-apiserver; hack/build-tools.sh makes one", assetsVariable)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range []string{etcdName, apiserverName} {
		if _, err := os.Stat(filepath.Join(assets, name)); err != nil {
			return fmt.Errorf("no %s in %s: %w", name, assetsVariable, err)
		}
		wrapper := filepath.Join(p.bin(), name)
		// An earlier run's pid may belong to anybody by now.
		for _, stale := range []string{wrapper, pidFile(p.bin(), name)} {
			if err := os.Remove(stale); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		if err := os.Symlink(self, wrapper); err != nil {
			return err
		}
	}
	return errors.Join(os.Setenv(assetsVariable, assets), os.Setenv(parentVariable, strconv.Itoa(os.Getpid())))
}

func (p *plane) describeEtcd() error {
	log, err := p.log("etcd.log")
	if err != nil {
		return err
	}
	p.plane.Etcd = &envtest.Etcd{
		Path: filepath.Join(p.bin(), etcdName), DataDir: filepath.Join(p.dir, "etcd"),
		StartTimeout: patience, StopTimeout: patience, Out: log, Err: log,
	}
	// The data has to survive a killed process, which the page cache does, not a power failure.
	p.plane.Etcd.Configure().Set("unsafe-no-fsync", "true")
	return nil
}

func (p *plane) describeAPIServer() error {
	log, err := p.log("kube-apiserver.log")
	if err != nil {
		return err
	}
	server := &envtest.APIServer{
		Path: filepath.Join(p.bin(), apiserverName), CertDir: p.certs(),
		StartTimeout: patience, StopTimeout: patience, Out: log, Err: log,
	}
	p.plane.APIServer = server
	// Left to itself the API server looks for the interface of the default route, and a machine without network has none. Nobody here
	// reaches it through the kubernetes Service, so an address reserved for documentation (RFC 5737) does.
	server.Configure().Set("advertise-address", "192.0.2.1")
	if !p.audit {
		return nil
	}
	policy := filepath.Join(p.dir, "audit-policy.yaml")
	server.Configure().
		Set("audit-policy-file", policy).
		Set("audit-log-path", p.auditLog()).
		// Buffered lines would make a test that counts requests see too few.
		Set("audit-log-mode", "blocking")
	return os.WriteFile(policy, []byte(auditPolicy), 0o644)
}

func (p *plane) log(name string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(p.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		p.logs = append(p.logs, file)
	}
	return file, err
}

func (p *plane) closeLogs() {
	for _, file := range p.logs {
		_ = file.Close()
	}
}

// start brings both processes up and waits until a client can work.
func (p *plane) start() error {
	if err := p.plane.Start(); err != nil {
		return fmt.Errorf("start the control plane (logs are in %s): %w", p.dir, err)
	}
	admin, err := p.plane.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, nil)
	if err != nil {
		return errors.Join(err, p.stop())
	}
	p.admin = admin.Config()
	kubeconfig, err := admin.KubeConfig()
	if err != nil {
		return errors.Join(err, p.stop())
	}
	if err := os.WriteFile(p.kubeconfig(), kubeconfig, 0o600); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := p.awaitReady(); err != nil {
		return errors.Join(err, p.stop())
	}
	return nil
}

// awaitReady waits for what envtest does not: /readyz, and the default namespace, which a fresh etcd gets a moment later.
func (p *plane) awaitReady() error {
	client, err := kubernetes.NewForConfig(p.admin)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		if _, last = client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); last != nil {
			return false, nil
		}
		_, last = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("the API server did not become ready: %w", errors.Join(err, last))
	}
	return nil
}

func (p *plane) obey(command string) answer {
	var err error
	switch command {
	case "stop-apiserver":
		err = p.stopAPIServer()
	case "start-apiserver":
		err = p.startAPIServer()
	case "stop":
		err = p.stop()
	case "start":
		err = p.startAgain()
	default:
		err = fmt.Errorf("unknown command %q: stop-apiserver, start-apiserver, stop, start", command)
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	now := p.pids()
	return answer{OK: command, Pids: &now}
}

func (p *plane) stopAPIServer() error {
	return p.end(apiserverName, p.plane.APIServer.Stop)
}

// end stops a child the way envtest does, but not with envtest's patience: an API server that is asked to stop waits a minute for
// watches of custom resources, which every operator holds open. What was acknowledged is in etcd, so it may be killed.
func (p *plane) end(name string, stop func() error) error {
	if pid := p.pid(name); pid != 0 {
		// One that a test has paused would not hear the signal.
		_ = syscall.Kill(pid, syscall.SIGCONT)
		killer := time.AfterFunc(grace, func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		defer killer.Stop()
	}
	return stop()
}

func (p *plane) startAPIServer() error {
	if p.pid(apiserverName) != 0 {
		return errors.New("the API server is running")
	}
	if err := p.plane.APIServer.Start(); err != nil {
		return err
	}
	return p.awaitReady()
}

// startAgain starts both on the same ports and with the same certificates: clients from before go on.
func (p *plane) startAgain() error {
	if p.pid(etcdName) != 0 {
		return errors.New("etcd is running")
	}
	if err := p.plane.Etcd.Start(); err != nil {
		return err
	}
	return p.startAPIServer()
}

func (p *plane) stop() error {
	return errors.Join(p.stopAPIServer(), p.end(etcdName, p.plane.Etcd.Stop))
}

func (p *plane) pids() pids { return pids{p.pid(etcdName), p.pid(apiserverName)} }

// pid returns the process id of a running child, or 0.
func (p *plane) pid(name string) int {
	text, err := os.ReadFile(pidFile(p.bin(), name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}
