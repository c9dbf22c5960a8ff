//! Moving the fence of every target up, each by compare-and-swap. It can be broken off anywhere and begun again: what is stamped stays so, and the
//! grant is not active before everything is.

use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Api, Client,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams},
};

use super::{
    stamp::{self, Seen, Stamp},
    targets::Found,
};
use crate::{
    boundary::{BackendError, Fence},
    epoch::Holder,
};

/// How many objects are stamped at the same time.
const AT_ONCE: usize = 32;
/// How often one object is tried again because somebody else wrote it meanwhile.
const TRIES: u32 = 8;

/// Why an object was not stamped.
pub(super) enum Not {
    /// It is ahead.
    Ahead(Seen),
    /// It could not be.
    Failed(BackendError),
}

impl From<String> for Not {
    fn from(why: String) -> Self {
        Self::Failed(BackendError::Refused(why))
    }
}

/// The fence of an object as other backends have it.
pub(super) fn fence(seen: &Seen) -> Fence {
    Fence { epoch: seen.epoch, holder: Holder::new(&seen.holder).ok() }
}

/// Whether a fence shuts an owner out: later, or the same epoch of somebody else.
pub(super) fn is_ahead(seen: &Seen, owner: &Seen) -> bool {
    seen.epoch > owner.epoch || (seen.epoch == owner.epoch && seen != owner)
}

/// Stamps everything that does not carry the stamp; whether anything was changed.
pub(super) async fn stamp_all(
    client: &Client,
    namespace: &str,
    boundary: &str,
    found: &[Found],
    stamps: &[Stamp],
    owner: &Seen,
) -> Result<bool, Not> {
    let mut work = Vec::new();
    for (found, stamp) in found.iter().zip(stamps) {
        let api = found.api(client, namespace);
        for object in &found.objects {
            work.push(stamp_one(api.clone(), object.clone(), boundary.to_owned(), stamp.clone(), owner.clone()));
        }
    }
    let changed: Vec<bool> = stream::iter(work).buffer_unordered(AT_ONCE).try_collect().await?;
    Ok(changed.contains(&true))
}

async fn stamp_one(api: Api<DynamicObject>, mut object: ObjectMeta, boundary: String, stamp: Stamp, owner: Seen) -> Result<bool, Not> {
    let name = object.name.clone().unwrap_or_default();
    for _ in 0..TRIES {
        if let Some(seen) = stamp::read(&object, &boundary)?
            && is_ahead(&seen, &owner)
        {
            return Err(Not::Ahead(seen));
        }
        if stamp.is_on(&object) {
            return Ok(false);
        }
        let params = PatchParams { field_manager: Some("fencedlock".into()), ..PatchParams::default() };
        match api.patch_metadata(&name, &params, &Patch::Merge(stamp.patch(&object))).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            // Somebody wrote it, or moved its fence: it is read again.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(Not::Failed(super::failed(format_args!("{name:?} could not be stamped"), &error))),
        }
        match api.get_metadata_opt(&name).await {
            Ok(Some(read)) => object = read.metadata,
            Ok(None) => return Ok(false),
            Err(error) => return Err(Not::Failed(BackendError::Unreachable(error.to_string()))),
        }
    }
    Err(Not::Failed(BackendError::Refused(format!("{name:?} is written so often that it could not be stamped; it is tried again"))))
}
