//! The ConfigMap `fencedlock-epochs` of a namespace: it reserves epochs in blocks, so that they outlive the FencedLock
//! (protocol section 2). Written by compare-and-swap only, and never lowered.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};

use super::{
    error::{Error, Step, is_missing},
    follow::Key,
    unit::Unit,
};
pub(super) use crate::epoch::mint::RESERVATIONS as NAME;
use crate::epoch::mint::{Reservation, ReservationError};

/// Whose turn it is to raise a reservation in a namespace: its locks share one ConfigMap, and would conflict with each other.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, namespace: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(namespace.to_owned()).or_default())
    }
}

fn step<'a>(verb: &'static str, namespace: &'a str) -> Step<'a> {
    Step { verb, resource: "configmaps", namespace, name: NAME }
}

fn api(unit: &Unit, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(unit.client.clone(), namespace)
}

async fn get(unit: &Unit, namespace: &str) -> Result<Option<ConfigMap>, Error> {
    match api(unit, namespace).get(NAME).await {
        Ok(map) => Ok(Some(map)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(step("get", namespace).failed(&error)),
    }
}

fn entry(map: &ConfigMap, lock: &str) -> Result<Option<Reservation>, ReservationError> {
    map.data.as_ref().and_then(|data| data.get(lock)).map(|text| Reservation::parse(text)).transpose()
}

/// Why it failed is an answer, which the lock's status tells: the owner of before has lost the Lease all the same. Only that
/// somebody else was first is an error, and decided upon again.
fn told<T>(outcome: Result<T, Error>) -> Result<Result<T, ReservationError>, Error> {
    match outcome {
        Ok(done) => Ok(Ok(done)),
        Err(Error::Forbidden(right)) => Ok(Err(ReservationError::Forbidden(right))),
        Err(error @ Error::Refused { .. }) => Ok(Err(ReservationError::Refused(error.to_string()))),
        Err(error @ (Error::Unavailable { .. } | Error::TimedOut { .. })) => Ok(Err(ReservationError::Unavailable(error.to_string()))),
        Err(error @ (Error::Conflict(_) | Error::Defect(_))) => Err(error),
    }
}

/// The lock's reservation, uncached.
pub(super) async fn read(unit: &Unit, (namespace, lock): &Key) -> Result<Result<Option<Reservation>, ReservationError>, Error> {
    Ok(told(get(unit, namespace).await)?.and_then(|map| map.map_or(Ok(None), |map| entry(&map, lock))))
}

/// Raises the lock's reservation. What stands there may have changed since it was read: then the caller decides again.
pub(super) async fn raise(
    unit: &Unit,
    key: &Key,
    read: Option<&Reservation>,
    to: &Reservation,
) -> Result<Result<(), ReservationError>, Error> {
    told(try_raise(unit, key, read, to).await)
}

async fn try_raise(unit: &Unit, (namespace, lock): &Key, read: Option<&Reservation>, to: &Reservation) -> Result<(), Error> {
    let turn = unit.reserving.of(namespace);
    let _turn = turn.lock().await;
    let conflict = || Error::Conflict(format!("ConfigMap {namespace}/{NAME}"));
    let Some(mut map) = get(unit, namespace).await? else {
        if read.is_some() {
            return Err(conflict());
        }
        let map = ConfigMap {
            metadata: kube::api::ObjectMeta { name: Some(NAME.into()), namespace: Some(namespace.clone()), ..Default::default() },
            data: Some(BTreeMap::from([(lock.clone(), to.to_string())])),
            ..Default::default()
        };
        return match api(unit, namespace).create(&PostParams::default(), &map).await {
            Ok(_) => Ok(()),
            // Another replica or another lock's reconcile made it first.
            Err(kube::Error::Api(status)) if status.code == 409 => Err(conflict()),
            Err(error) => Err(step("create", namespace).failed(&error)),
        };
    };
    if !entry(&map, lock).is_ok_and(|now| now.as_ref() == read) {
        return Err(conflict());
    }
    map.data.get_or_insert_default().insert(lock.clone(), to.to_string());
    // The resourceVersion that was read makes this a compare-and-swap.
    api(unit, namespace).replace(NAME, &PostParams::default(), &map).await.map_err(|error| step("update", namespace).failed(&error))?;
    Ok(())
}
