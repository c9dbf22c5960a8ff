import io.fabric8.kubernetes.api.model.GenericKubernetesResource;
import io.fabric8.kubernetes.api.model.coordination.v1.Lease;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElector;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import java.time.Duration;
import java.time.Instant;
import java.time.OffsetDateTime;
import java.util.Objects;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;

/**
 * A worker that uses its epoch: leader election with fabric8's client, and the grant of a FencedLock.
 *
 * <pre>NAMESPACE=default LOCK=report-writer LEASE=report-writer java -cp ... Worker</pre>
 *
 * It ends with 3 when the Lease was lost or a newer epoch exists. A supervisor starts it again: a new process, with a new
 * identity, is the only clean way back.
 */
public final class Worker {
    private static final int LOST = 3;
    private static final String NAMESPACE = System.getenv().getOrDefault("NAMESPACE", "default");
    private static final String LOCK = Objects.requireNonNull(System.getenv("LOCK"), "LOCK: the name of the FencedLock");
    private static final String LEASE = System.getenv().getOrDefault("LEASE", LOCK);
    /** {@code <pod>_<random>}: the operator finds the pod, and no two processes ever share an identity. */
    private static final String ID = System.getenv().getOrDefault("HOSTNAME", "local") + "_" + UUID.randomUUID();

    /** What tells one acquisition of the Lease from the next. A time is compared by value, not by its spelling. */
    private record Term(String leaseUid, Instant acquired, Integer transitions) {}

    private final KubernetesClient client;
    private final Thread work = new Thread(this::lead, "work");
    private volatile boolean stopping;

    private Worker(KubernetesClient client) {
        this.client = client;
    }

    public static void main(String[] args) {
        new Worker(new KubernetesClientBuilder().build()).run();
    }

    private void run() {
        var config = new LeaderElectionConfigBuilder()
            .withName(LEASE)
            .withLock(new LeaseLock(NAMESPACE, LEASE, ID))
            .withLeaseDuration(Duration.ofSeconds(15))
            .withRenewDeadline(Duration.ofSeconds(10))
            .withRetryPeriod(Duration.ofSeconds(2))
            .withReleaseOnCancel(true)
            // The first callback must return: the elector calls it from the thread that renews.
            .withLeaderCallbacks(new LeaderCallbacks(work::start, this::leaseIsGone, leader -> {}))
            .build();
        var election = new LeaderElector(client, config, Executors.newCachedThreadPool()).start();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> shutDown(election)));
        try {
            election.join();
        } catch (CompletionException | CancellationException error) {
            if (!stopping) {
                say("the election ended: " + error);
            }
        }
        leaseIsGone();
    }

    private void leaseIsGone() {
        if (!stopping) {
            stop("the Lease was lost", LOST);
        }
    }

    /** At SIGTERM: first the work stops, then the Lease is released. The other way round, two would work. */
    private void shutDown(CompletableFuture<?> election) {
        stopping = true;
        work.interrupt();
        try {
            work.join(10_000);
        } catch (InterruptedException error) {
            return;
        }
        if (!work.isAlive()) {
            election.cancel(true);
        }
        say("stopped: SIGTERM");
    }

    private void lead() {
        try {
            say("leading as " + ID);
            long epoch = waitForEpoch();
            Thread watcher = new Thread(() -> stopWhenPassed(epoch), "epoch");
            watcher.setDaemon(true);
            watcher.start();
            say("working under epoch " + epoch);
            // Read the state again, now: what this process knew before it owned the lock may be old.
            for (int item = 0; ; item++) {
                write(epoch, item);
                Thread.sleep(2_000);
            }
        } catch (InterruptedException error) {
            say("the work has stopped");
        }
    }

    /** Your write. Send the epoch with it; it is an argument, never looked up here. */
    private static void write(long epoch, int item) {
        say("write item " + item + " with epoch " + epoch);
    }

    /** The epoch of this acquisition. Called once; the number then travels with the work. */
    private long waitForEpoch() throws InterruptedException {
        while (true) {
            try {
                // The Lease first: it is what this process wrote, and every grant is compared with it.
                Optional<Long> epoch = ownTerm().flatMap(own -> granted(lock(), own));
                if (epoch.isPresent()) {
                    return epoch.get();
                }
            } catch (RuntimeException error) {
                // An API server that is away is waited for; losing the Lease ends the process.
                System.err.println("waiting for the grant: " + error.getMessage());
            }
            Thread.sleep(1_000);
        }
    }

    /** Ends the process as soon as a newer epoch exists, as if the Lease were lost. */
    private void stopWhenPassed(long epoch) {
        while (true) {
            try {
                Number newest = lock().get("status", "epoch");
                if (newest != null && newest.longValue() > epoch) {
                    stop("epoch " + epoch + " was passed by " + newest, LOST);
                }
            } catch (RuntimeException error) {
                System.err.println("watching the epoch: " + error.getMessage());
            }
            LockSupport.parkNanos(Duration.ofSeconds(1).toNanos());
        }
    }

    /** What this process wrote when it acquired the Lease; empty when the Lease is somebody else's. */
    private Optional<Term> ownTerm() {
        Lease lease = client.leases().inNamespace(NAMESPACE).withName(LEASE).require();
        var spec = lease.getSpec();
        if (!ID.equals(spec.getHolderIdentity()) || spec.getAcquireTime() == null) {
            return Optional.empty();
        }
        return Optional.of(new Term(lease.getMetadata().getUid(), spec.getAcquireTime().toInstant(), spec.getLeaseTransitions()));
    }

    /** The grant's epoch, when it is active, names this process, and is for this very acquisition. */
    private static Optional<Long> granted(GenericKubernetesResource lock, Term own) {
        String acquired = lock.get("status", "grant", "term", "acquireTime");
        if (acquired == null || !"Active".equals(lock.get("status", "grant", "state")) || !ID.equals(lock.get("status", "grant", "holder"))) {
            return Optional.empty();
        }
        var carried = new Term(
            lock.get("status", "grant", "term", "leaseUid"),
            OffsetDateTime.parse(acquired).toInstant(),
            lock.get("status", "grant", "term", "leaseTransitions"));
        Number epoch = lock.get("status", "grant", "epoch");
        return carried.equals(own) ? Optional.of(epoch.longValue()) : Optional.empty();
    }

    private GenericKubernetesResource lock() {
        return client.genericKubernetesResources("fencedlock.dev/v1alpha1", "FencedLock").inNamespace(NAMESPACE).withName(LOCK).require();
    }

    /** Ends the process at once, writes under way included. */
    private static void stop(String why, int code) {
        say("stopped: " + why);
        Runtime.getRuntime().halt(code);
    }

    private static void say(String text) {
        System.out.println(text);
    }
}
