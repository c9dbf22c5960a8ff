//! Drives an [`Election`] against a cluster.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::acquire::{Election, Move, Timing};
use crate::api::OPERATOR_ELECTION_LABEL;

/// A candidate for a Lease, with what it needs to try.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    name: String,
    timing: Timing,
    election: Election,
    /// The Lease as it was seen last: what a write replaces.
    last: Option<Lease>,
}

impl Elector {
    /// A candidate for the Lease of this name.
    pub fn new(api: Api<Lease>, name: impl Into<String>, identity: impl Into<String>, timing: Timing) -> Self {
        Self { api, name: name.into(), timing, election: Election::new(identity, timing), last: None }
    }

    /// One attempt: reads the Lease, and writes it if it may be taken or has to be renewed. A compare-and-swap that fails is no error:
    /// somebody else was first.
    async fn attempt(&mut self) -> kube::Result<()> {
        let began = Instant::now();
        let read = self.api.get_opt(&self.name).await?;
        self.election.see(read.as_ref(), Instant::now());
        self.last = read;
        let Move::Write(spec) = self.election.next(Timestamp::now(), Instant::now()) else { return Ok(()) };
        match self.write(spec).await {
            Ok(lease) => {
                self.election.wrote(&lease, began);
                self.last = Some(lease);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, spec: LeaseSpec) -> kube::Result<Lease> {
        let first = || {
            let labels = BTreeMap::from([(OPERATOR_ELECTION_LABEL.to_owned(), "true".to_owned())]);
            let metadata = ObjectMeta { name: Some(self.name.clone()), labels: Some(labels), ..ObjectMeta::default() };
            Lease { metadata, spec: None }
        };
        let next = Lease { spec: Some(spec), ..self.last.clone().unwrap_or_else(first) };
        match &self.last {
            // The resourceVersion that was read makes this a compare-and-swap.
            Some(_) => self.api.replace(&self.name, &PostParams::default(), &next).await,
            None => self.api.create(&PostParams::default(), &next).await,
        }
    }

    /// Gives the Lease back, so that the next one need not wait for it to expire.
    async fn release(&self) {
        let Some(spec) = self.election.release(Timestamp::now()) else { return };
        if let Err(error) = self.write(spec).await {
            tracing::info!(lease = self.name, %error, "the Lease was not given back and has to expire");
        }
    }
}

/// Competes until `stop`, then gives the Lease back. `leads` shows at each time whether this process leads.
pub async fn run(elector: Elector, leads: watch::Sender<bool>, stop: CancellationToken) {
    let name = elector.name.clone();
    let note = |held: Option<&Lease>| {
        leads.send_if_modified(|was| {
            let now = held.is_some();
            let turned = std::mem::replace(was, now) != now;
            if turned {
                tracing::info!(lease = name, leads = now, "leadership");
            }
            turned
        });
    };
    compete(elector, note, stop).await;
}

/// Competes until `stop`, then gives the Lease back. `held` is called after each attempt with the Lease as it was written last while
/// this process leads, and with nothing as soon as it does not: within the renew deadline when the Lease cannot be renewed, before
/// anybody else may take over.
pub async fn compete(mut elector: Elector, mut held: impl FnMut(Option<&Lease>), stop: CancellationToken) {
    let deadline = elector.timing.deadline();
    // Nothing is awaited for longer than this process leads, so that a hanging API server cannot keep a lost leader going.
    let at_most = |elector: &Elector, wait: Duration| elector.election.leads_for(Instant::now()).map_or(wait, |left| left.min(wait));
    loop {
        let limit = at_most(&elector, deadline / 2);
        match tokio::time::timeout(limit, elector.attempt()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(lease = elector.name, %error, "the Lease could not be read or renewed"),
            Err(_) => tracing::warn!(lease = elector.name, "the API server does not answer in time about the Lease"),
        }
        held(elector.last.as_ref().filter(|_| elector.election.leads(Instant::now())));
        tokio::select! {
            () = tokio::time::sleep(at_most(&elector, elector.timing.retry())) => {}
            () = stop.cancelled() => break,
        }
    }
    held(None);
    if tokio::time::timeout(deadline / 2, elector.release()).await.is_err() {
        tracing::info!(lease = elector.name, "the Lease was not given back in time and has to expire");
    }
}
