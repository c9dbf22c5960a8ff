//! Holding a lock: its Lease, and the epoch of that acquisition.

use futures::StreamExt;
use kube::{Api, Client, runtime::watcher};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    acquire::Timing,
    elect::{self, Elector},
    grant::{Standing, standing},
};
use crate::{
    api::FencedLock,
    epoch::{Epoch, term::LeaseView},
};

/// How holding a lock stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Somebody else has the Lease, or nobody yet.
    Contending,
    /// The Lease is held, and its epoch is not active yet: why, in the operator's words.
    Waiting(String),
    /// The epoch is active: the work may be done under it.
    Granted(Epoch),
    /// It is over, and does not come back: the work has to end. Why.
    Lost(String),
}

/// Which lock, and as whom.
#[derive(Clone, Debug)]
pub struct Lock {
    /// Its namespace.
    pub namespace: String,
    /// The FencedLock.
    pub name: String,
    /// Its Lease.
    pub lease: String,
    /// Who this process is: different at each start.
    pub identity: String,
    /// How long things take.
    pub timing: Timing,
}

/// Competes for a lock until `stop`, then gives the Lease back. Once granted, the hold is `Granted` until it is `Lost`, and then it
/// stays lost: whoever wants the lock again begins anew, as another holder.
pub async fn hold(client: Client, lock: Lock, state: watch::Sender<Hold>, stop: CancellationToken) {
    let leases = Api::namespaced(client.clone(), &lock.namespace);
    let elector = Elector::new(leases, &lock.lease, &lock.identity, lock.timing);
    let held = watch::Sender::new(None::<LeaseView>);
    let noting = held.clone();
    let note = move |lease: Option<&_>| drop(noting.send_replace(lease.cloned().map(LeaseView::from)));
    let compete = elect::compete(elector, note, stop.clone());
    tokio::pin!(compete);
    tokio::select! {
        () = &mut compete => return,
        () = follow(client, &lock, held.subscribe(), &state) => {}
    }
    // It is over. A Lease that is still held is kept until the work has ended, which is when we are told to stop; one that was lost is not
    // competed for again.
    if held.borrow().is_some() || stop.is_cancelled() {
        compete.await;
    }
}

/// Follows the lock's status for one acquisition.
async fn follow(client: Client, lock: &Lock, mut held: watch::Receiver<Option<LeaseView>>, state: &watch::Sender<Hold>) {
    let api = Api::<FencedLock>::namespaced(client, &lock.namespace);
    let mut statuses = std::pin::pin!(watcher::watch_object(api, &lock.name));
    let (mut mine, mut latest) = (None::<Epoch>, None::<FencedLock>);
    loop {
        let now = held.borrow_and_update().clone();
        let next = decide(now.as_ref(), latest.as_ref(), &mut mine);
        let is_over = matches!(next, Hold::Lost(_));
        state.send_if_modified(|was| std::mem::replace(was, next.clone()) != next);
        if is_over {
            return;
        }
        tokio::select! {
            changed = held.changed() => if changed.is_err() { return },
            event = statuses.next() => match event {
                Some(Ok(found)) => latest = found,
                // The watch tries again by itself; what is known goes on to count.
                Some(Err(error)) => tracing::warn!(lock = lock.name, %error, "the lock's status cannot be followed"),
                None => return,
            },
        }
    }
}

/// How it stands, from the Lease that is held and the lock as it was seen last.
fn decide(held: Option<&LeaseView>, lock: Option<&FencedLock>, mine: &mut Option<Epoch>) -> Hold {
    let Some(held) = held else {
        return if mine.is_some() { Hold::Lost("the Lease was lost or could not be renewed in time".into()) } else { Hold::Contending };
    };
    let status = lock.and_then(|lock| lock.status.clone()).unwrap_or_default();
    match standing(&status, held, *mine) {
        Standing::Waiting => {
            let condition = status.conditions.iter().find(|c| c.type_ == crate::api::conditions::lock::EPOCH_ACTIVE);
            Hold::Waiting(condition.map_or_else(|| "the operator has not seen the lock yet".to_owned(), |c| c.message.clone()))
        }
        Standing::Granted(epoch) => {
            *mine = Some(epoch);
            Hold::Granted(epoch)
        }
        Standing::Passed(by) => Hold::Lost(format!("epoch {by} was minted since")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_once_is_not_found_again() {
        let mut mine = None;
        assert_eq!(decide(None, None, &mut mine), Hold::Contending);
        mine = Epoch::new(7).ok();
        assert!(matches!(decide(None, None, &mut mine), Hold::Lost(_)), "the Lease went");
    }
}
