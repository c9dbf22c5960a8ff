//! The cluster's API servers, one by one. Each learns of policies by itself, so that one of them can admit what the others refuse; a Service or a
//! load balancer before them shows one at a time.

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, Config, api::ListParams};

use crate::boundary::BackendError;

/// The name that every API server's certificate has.
const CERTIFIED: &str = "kubernetes.default.svc";
const OF_SERVICE: &str = "kubernetes.io/service-name=kubernetes";

/// How the API servers are reached.
#[derive(Clone, Default)]
pub enum ApiServers {
    /// Only as everything else is: outside of a cluster their own addresses may not be reachable.
    #[default]
    Configured,
    /// Each at the address that the Service `kubernetes` has for it, by what the pod was configured with.
    Discovered(Box<Config>),
    /// These, by names that a person knows them by.
    These(Vec<(String, Client)>),
}

impl ApiServers {
    /// A client of each, over a new connection, and the name of each; nothing is sent to them yet.
    ///
    /// # Errors
    /// When it is not known which there are.
    pub(super) async fn clients(&self, client: &Client) -> Result<Vec<(String, Client)>, BackendError> {
        match self {
            Self::Configured => Ok(vec![("the one that is configured".to_owned(), client.clone())]),
            Self::These(clients) => Ok(clients.clone()),
            Self::Discovered(config) => {
                let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
                let listed = slices.list(&ListParams::default().labels(OF_SERVICE)).await;
                let slices = listed.map_err(|error| match error {
                    kube::Error::Api(status) if status.code == 403 => BackendError::Refused(
                        "the operator may not list endpointslices.discovery.k8s.io in namespace default, so it is not known which API servers there \
                         are: install the chart with guard.enabled, which gives it that right"
                            .to_owned(),
                    ),
                    error => super::failed("the API servers' addresses", &error),
                })?;
                let hosts: Vec<_> = slices.items.iter().flat_map(addresses).collect();
                if hosts.is_empty() {
                    return Err(BackendError::Refused(
                        "the Service kubernetes names no API server, so not every one could be tried".to_owned(),
                    ));
                }
                hosts.into_iter().map(|host| Ok((host.clone(), at(config, &host)?))).collect()
            }
        }
    }

    /// What a person has to know of how far this goes.
    pub(super) const fn note(&self) -> Option<&'static str> {
        match self {
            Self::Configured => Some("outside of a cluster only one API server was tried, the one that is configured"),
            Self::Discovered(_) | Self::These(_) => None,
        }
    }
}

/// The addresses of a slice, with their port.
fn addresses(slice: &EndpointSlice) -> Vec<String> {
    let mut ports = slice.ports.iter().flatten().filter(|port| port.name.as_deref().is_none_or(|name| name == "https" || name.is_empty()));
    let port = ports.find_map(|port| port.port).unwrap_or(443);
    let is_six = slice.address_type == "IPv6";
    let endpoints = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    endpoints.map(|address| if is_six { format!("[{address}]:{port}") } else { format!("{address}:{port}") }).collect()
}

fn at(config: &Config, host: &str) -> Result<Client, BackendError> {
    let unusable =
        |error: &dyn std::fmt::Display| BackendError::Refused(format!("the API server's address {host:?} cannot be used: {error}"));
    let mut config = config.clone();
    config.cluster_url = format!("https://{host}").parse().map_err(|error| unusable(&error))?;
    config.tls_server_name = Some(CERTIFIED.to_owned());
    Client::try_from(config).map_err(|error| unusable(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_address_is_an_api_server() {
        let slice = |kind: &str, addresses: &[&str]| -> EndpointSlice {
            serde_json::from_value(json!({"metadata": {}, "addressType": kind, "endpoints": [{"addresses": addresses}], "ports": [{"name": "https", "port": 6443}]})).unwrap()
        };
        assert_eq!(addresses(&slice("IPv4", &["10.0.0.1", "10.0.0.2"])), ["10.0.0.1:6443", "10.0.0.2:6443"]);
        assert_eq!(addresses(&slice("IPv6", &["fd00::1"])), ["[fd00::1]:6443"]);
    }
}
