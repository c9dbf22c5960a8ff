//! Words that say more than a class does. Each is a hint for a person, never a judgement.

use super::{Finding, catalogue as rule, lock::Judged};

/// Words of data that two writers corrupt.
const DATA: &[&str] = &[
    "account",
    "accounting",
    "accounts",
    "backup",
    "backups",
    "balance",
    "balances",
    "billing",
    "booking",
    "bookings",
    "charge",
    "charges",
    "checkpoint",
    "customer",
    "customers",
    "database",
    "failover",
    "inventory",
    "invoice",
    "invoices",
    "ledger",
    "ledgers",
    "migrate",
    "migrates",
    "migration",
    "migrations",
    "money",
    "order",
    "orders",
    "payment",
    "payments",
    "payout",
    "payouts",
    "persistentvolume",
    "persistentvolumeclaim",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pvc",
    "quota",
    "refund",
    "refunds",
    "replication",
    "restore",
    "schema",
    "settlement",
    "stock",
    "transaction",
    "transactions",
    "transfer",
    "transfers",
];

/// What an efficiency-only lock says about itself that does not sound like efficiency.
pub(super) fn says_otherwise(lock: &Judged<'_>) -> Option<Finding> {
    let lease = lock.spec.coordinator.lease.as_ref().map_or("", |lease| lease.name.as_str());
    let mut places =
        vec![("its name", lock.name), ("spec.coordinator.lease.name", lease), ("spec.purpose", lock.spec.purpose.as_deref().unwrap_or(""))];
    for (_, spec) in lock.specs {
        places.extend(
            spec.postgres.iter().flat_map(|postgres| &postgres.tables).map(|table| ("the table of a write boundary", table.name.as_str())),
        );
        places.extend(
            spec.kubernetes
                .iter()
                .flat_map(|kubernetes| &kubernetes.targets)
                .map(|target| ("the target of a write boundary", target.resource.as_str())),
        );
        places.extend(spec.external.iter().map(|external| ("the receiver of a write boundary", external.receiver.as_str())));
    }
    let (place, word) = places.into_iter().find_map(|(place, text)| Some((place, word_of(text, DATA)?)))?;
    let message = format!(
        "the lock is efficiency-only and {place} speaks of {word:?}: if two holders could corrupt that, declare it CorrectnessCritical; if they only waste \
         work, nothing has to change"
    );
    Some(rule::EFFICIENCY_LOCK_TOUCHES_DATA.finds("", message))
}

/// The first word of a text that is in a list.
fn word_of(text: &str, list: &[&'static str]) -> Option<&'static str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.map(str::to_ascii_lowercase).find_map(|word| list.iter().copied().find(|known| *known == word))
}

/// The word by which a receiver is a lock service, if it is one.
pub(super) fn lock_service(receiver: &str) -> Option<&'static str> {
    const WORDS: &[&str] = &["advisory", "lock", "locks", "mutex", "redlock", "redisson", "semaphore", "shedlock", "zookeeper"];
    const PARTS: &[&str] = &["advisory_lock", "redlock", "redisson", "shedlock", "zookeeper"];
    let lower = receiver.to_ascii_lowercase();
    word_of(receiver, WORDS).or_else(|| PARTS.iter().copied().find(|part| lower.contains(part)))
}

/// The part of a Lease's name that looks like the value of one run or one version, if there is one.
pub(super) fn per_run(name: &str) -> Option<&str> {
    let is_run = |part: &&str| {
        let has_digit = part.bytes().any(|c| c.is_ascii_digit());
        let is_number = part.bytes().all(|c| c.is_ascii_digit());
        let is_hex = part.bytes().all(|c| c.is_ascii_hexdigit());
        // A commit or a part of a uuid has letters and digits; a date has 8 digits, a time since 1970 has 10 or 13.
        (is_hex && !is_number && has_digit && part.len() >= 7) || (is_number && matches!(part.len(), 8 | 10 | 13))
    };
    // "80807133.example.com" is what a scaffold makes once for a project: the number stands for it.
    if name.contains('.') {
        return None;
    }
    name.split(['-', '_']).skip(1).find(is_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case F12.
    #[test]
    fn values_of_one_run_are_told_from_names() {
        for name in ["deploy-3f2a9bc", "apply-20261202", "job-1764720000", "tf-0b9f6a3e-5f7c-4a53-9d0e-4c1b2a3d4e5f"] {
            assert!(per_run(name).is_some(), "{name}");
        }
        for name in ["report-writer", "80807133.tutorial.example.io", "zone-1", "v2-migrator", "decade-facade", "shard-0007", "deadbeef"] {
            assert_eq!(per_run(name), None, "{name}");
        }
    }

    #[test]
    fn lock_services_are_told_from_receivers() {
        for receiver in
            ["Redlock on redis-a, redis-b", "pg_advisory_lock(42)", "ZooKeeper /locks/x", "redis distributed lock", "redisson://cache"]
        {
            assert!(lock_service(receiver).is_some(), "{receiver}");
        }
        for receiver in ["payments.example/charges", "smtp.example", "block storage", "clock.example", "redis://cache"] {
            assert_eq!(lock_service(receiver), None, "{receiver}");
        }
    }
}
