//! What more than one room has to know of talking to an API server: the pages of a listing, and what a refused watch was refused. Nothing of any kind
//! of object.

use std::fmt::Debug;

use kube::{Api, api::ListParams, runtime::watcher};
use serde::de::DeserializeOwned;

/// How many objects one page of a listing has.
const PAGE: u32 = 500;

/// Lists everything, page by page.
///
/// # Errors
/// That of the first page that cannot be had: part of a list is none.
pub(crate) async fn all<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>> {
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// The code that a watch was answered with, and for which verb; `None` when it was not answered.
pub(crate) fn answered(error: &watcher::Error) -> Option<(u16, &'static str)> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status)) => Some((status.code, "list")),
        WatchStartFailed(kube::Error::Api(status)) | WatchFailed(kube::Error::Api(status)) | WatchError(status) => {
            Some((status.code, "watch"))
        }
        _ => None,
    }
}
