import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderCallbacks;
import io.fabric8.kubernetes.client.extended.leaderelection.LeaderElectionConfigBuilder;
import io.fabric8.kubernetes.client.extended.leaderelection.resourcelock.LeaseLock;
import java.time.Duration;

/**
 * An ordinary leader election with fabric8's client. The tests use it to show that unmodified clients get epochs. Prints "leading"
 * once it is elected; gives the Lease up when it is told to stop. usage: Elector NAMESPACE LEASE IDENTITY
 */
public final class Elector {
  private Elector() {}

  public static void main(String[] args) throws InterruptedException {
    var client = new KubernetesClientBuilder().build();
    var config =
        new LeaderElectionConfigBuilder()
            .withName("elector")
            .withLock(new LeaseLock(args[0], args[1], args[2]))
            .withLeaseDuration(Duration.ofSeconds(3))
            .withRenewDeadline(Duration.ofSeconds(2))
            .withRetryPeriod(Duration.ofMillis(500))
            .withReleaseOnCancel(true)
            .withLeaderCallbacks(
                new LeaderCallbacks(
                    () -> System.out.println("leading"), () -> {}, newLeader -> {}))
            .build();
    var election = client.leaderElector().withConfig(config).build().start();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  // Gives the Lease up before it returns.
                  election.cancel(true);
                  client.close();
                }));
    Thread.currentThread().join();
  }
}
