//! Requests of one identity as they go over the wire, with the answer whole: status, text, warnings.

use http::{Method, Request};
use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::ServiceAccount};
use kube::{
    Api, Client, Config,
    api::PostParams,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use super::plane::Plane;

pub const MERGE: &str = "application/merge-patch+json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub const APPLY: &str = "application/apply-patch+yaml";
pub const PLAIN: &str = "application/json";

/// Somebody who makes requests.
#[derive(Clone)]
pub struct Requester {
    pub client: Client,
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// The `message` of a Status, empty for an object.
    pub message: String,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Requester {
    pub const fn new(client: Client) -> Self {
        Self { client }
    }

    /// With the token of a ServiceAccount, bound to a pod when one is named.
    pub async fn account(plane: &Plane, admin: &Client, namespace: &str, account: &str, pod: Option<(&str, &str)>) -> Self {
        Self::account_at(plane, None, admin, namespace, account, pod).await
    }

    /// The same at another API server of the plane.
    pub async fn account_at(
        plane: &Plane,
        server: Option<&str>,
        admin: &Client,
        namespace: &str,
        account: &str,
        pod: Option<(&str, &str)>,
    ) -> Self {
        let accounts = Api::<ServiceAccount>::namespaced(admin.clone(), namespace);
        let bound = pod.map(|(name, uid)| json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}));
        let request: TokenRequest =
            serde_json::from_value(json!({"spec": {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": bound}})).unwrap();
        let token = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap().status.unwrap().token;
        let mut file = Kubeconfig::read_from(&plane.kubeconfig).unwrap();
        for user in &mut file.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.clone().into()), ..AuthInfo::default() });
        }
        for cluster in file.clusters.iter_mut().filter_map(|cluster| cluster.cluster.as_mut()) {
            cluster.server = server.map(str::to_owned).or_else(|| cluster.server.take());
        }
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        Self::new(Client::try_from(config).unwrap())
    }

    pub async fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> Reply {
        let body = if body.is_null() { Vec::new() } else { serde_json::to_vec(body).unwrap() };
        let request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path).header("Content-Type", content);
        let response = self.client.send(request.body(body.into()).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let warnings = response.headers().get_all("Warning").iter().map(|w| String::from_utf8_lossy(w.as_bytes()).into_owned()).collect();
        let bytes = response.into_body().collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let message = if body["kind"] == "Status" { body["message"].as_str().unwrap_or_default().to_owned() } else { String::new() };
        Reply { status, message, body, warnings }
    }

    pub async fn merge(&self, path: &str, body: Value) -> Reply {
        self.send("PATCH", path, MERGE, &body).await
    }
}
