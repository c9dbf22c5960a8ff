//! How the operator behaves: plain data, with the defaults.

use std::time::Duration;

use crate::client::acquire::Timing;

/// Which namespaces are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of them, with cluster-wide rights.
    Cluster,
    /// These, each on its own: a right that is missing in one does not stop the others.
    Namespaces(Vec<String>),
}

/// What this replica is called: its pod's name, where there is one.
pub fn replica_name() -> String {
    std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "fencedlock-operator".into())
}

/// The operator's own election. It saves work and nothing else: every step is a compare-and-swap or idempotent, so a leader that
/// was paused and wakes up harms nothing. By our own classes it is an efficiency-only lock.
#[derive(Clone, Debug)]
pub struct Election {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who this replica is, different at each start.
    pub identity: String,
    /// How long things take.
    pub timing: Timing,
}

/// How the operator behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which namespaces are served.
    pub scope: Scope,
    /// How many locks are reconciled at the same time, at least 1.
    pub concurrency: u16,
    /// How long one pass over one lock may take.
    pub reconcile_timeout: Duration,
    /// How long a boundary may take to answer.
    pub backend_timeout: Duration,
    /// How long the examination of one boundary may take.
    pub proof_timeout: Duration,
    /// How long the API server lets a watch last before it has to be asked for again. The default ends before common load
    /// balancers drop an idle connection (200 s), so that a dead one is noticed (architecture, section 5).
    pub watch_timeout: Duration,
    /// The operator's own election; without it every replica works.
    pub election: Option<Election>,
    /// How much longer than that a watch may be silent before `/livez` calls it dead.
    pub watch_grace: Duration,
    /// How often Leases that nobody declared are told of, and how long one has to be there before.
    pub undeclared_round: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            scope: Scope::Cluster,
            concurrency: 16,
            reconcile_timeout: Duration::from_secs(30),
            backend_timeout: Duration::from_secs(10),
            proof_timeout: Duration::from_secs(30),
            watch_timeout: Duration::from_mins(3),
            election: None,
            watch_grace: Duration::from_mins(1),
            undeclared_round: Duration::from_mins(1),
        }
    }
}
