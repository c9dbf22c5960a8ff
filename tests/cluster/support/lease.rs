//! Leases as clients write them. `L(holder, tr, acq)` of the cases.

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, PostParams},
};

/// A client of one Lease that does exactly what it is told.
pub struct LeaseClient {
    pub api: Api<Lease>,
    pub name: String,
}

/// A time of acquisition, in seconds of an arbitrary epoch.
pub fn at(seconds: i64) -> Option<MicroTime> {
    Some(MicroTime(Timestamp::new(1_800_000_000 + seconds, 123_456_000).unwrap()))
}

impl LeaseClient {
    /// Creates or overwrites the Lease's spec.
    pub async fn put(&self, holder: Option<&str>, transitions: Option<i32>, acquired: Option<MicroTime>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_transitions: transitions,
            acquire_time: acquired,
            renew_time: Some(MicroTime(Timestamp::now())),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        self.put_spec(Some(spec)).await
    }

    /// Creates or overwrites the Lease with a spec.
    pub async fn put_spec(&self, spec: Option<LeaseSpec>) -> Lease {
        match self.api.get_opt(&self.name).await.unwrap() {
            Some(mut lease) => {
                lease.spec = spec;
                self.api.replace(&self.name, &PostParams::default(), &lease).await.unwrap()
            }
            None => {
                let lease = Lease { metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }, spec };
                self.api.create(&PostParams::default(), &lease).await.unwrap()
            }
        }
    }

    /// Renews: only `renewTime` moves.
    pub async fn renew(&self) -> Lease {
        let mut lease = self.api.get(&self.name).await.unwrap();
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(Timestamp::now()));
        self.api.replace(&self.name, &PostParams::default(), &lease).await.unwrap()
    }

    /// Releases as client-go does: no holder, a duration of one second, fresh times, the counter kept (case B01).
    pub async fn release(&self) {
        let mut lease = self.api.get(&self.name).await.unwrap();
        let spec = lease.spec.as_mut().unwrap();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        (spec.acquire_time, spec.renew_time) = (Some(MicroTime(Timestamp::now())), Some(MicroTime(Timestamp::now())));
        self.api.replace(&self.name, &PostParams::default(), &lease).await.unwrap();
    }

    pub async fn delete(&self) {
        self.api.delete(&self.name, &DeleteParams::default()).await.unwrap();
    }
}
