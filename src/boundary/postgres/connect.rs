//! How a database is reached: the URL out of a Secret, TLS by its `sslmode`, and errors that say what is wrong without the secret.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use tokio::task::AbortHandle;
use tokio_postgres::{Config, NoTls, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use url::Url;

use crate::{api::SecretKeyRef, boundary::BackendError};

/// What errors call a URL that was given directly.
const GIVEN: &str = "the connection URL";
/// The key of the Secret that holds the certificates of the authorities, in PEM.
const CA_KEY: &str = "ca.crt";
/// How long the server may take to answer a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the URL of a database is.
#[derive(Clone)]
pub enum Access {
    /// In a Secret, which is read each time: a password that was changed counts at once.
    Secret {
        /// Reads it.
        client: Client,
        /// The namespace of the boundary.
        namespace: String,
        /// The Secret and its key.
        key: SecretKeyRef,
        /// The field that names them.
        field: &'static str,
    },
    /// Given directly, with the authorities' certificates if there are any: the command line, tests.
    Given {
        /// The URL.
        url: String,
        /// Certificates in PEM.
        authorities: Option<Vec<u8>>,
    },
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A URL holds a password.
        f.write_str("Access")
    }
}

/// A connection, whose task ends with it.
pub(crate) struct Session {
    pub(crate) client: tokio_postgres::Client,
    task: AbortHandle,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a URL says, taken apart.
pub(crate) struct Target {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    /// What errors name it by.
    field: &'static str,
}

impl Access {
    /// Reads the URL and takes it apart.
    ///
    /// # Errors
    /// Names the field, the Secret and the key; never what is in it.
    pub(crate) async fn target(&self) -> Result<Target, BackendError> {
        match self {
            Self::Given { url, authorities } => target(url, authorities.as_deref(), GIVEN, GIVEN),
            Self::Secret { client, namespace, key, field: path } => {
                let (name, field) = (&key.name, &key.key);
                let place = format!("{path}: key {field:?} of Secret {name:?}");
                let secret = read(client, namespace, name, path).await?;
                let data = secret.data.unwrap_or_default();
                let value = data
                    .get(field)
                    .ok_or_else(|| refused(format!("{place} does not exist: add it, or name the key that holds the URL")))?;
                let text = std::str::from_utf8(&value.0).map_err(|_| refused(format!("{place} is no text")))?;
                target(text.trim(), data.get(CA_KEY).map(|value| value.0.as_slice()), &place, path)
            }
        }
    }
}

async fn read(client: &Client, namespace: &str, name: &str, path: &str) -> Result<Secret, BackendError> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    let answer = tokio::time::timeout(CONNECT_TIMEOUT, api.get(name)).await;
    answer.map_err(|_| BackendError::TimedOut(CONNECT_TIMEOUT))?.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            refused(format!("{path}: there is no Secret {name:?} in namespace {namespace:?}: create it"))
        }
        kube::Error::Api(status) if status.code == 403 => refused(format!(
            "{path}: the operator may not get secrets {name:?} in namespace {namespace:?}: bind it the role that allows it (docs/postgres.md)"
        )),
        error => BackendError::Unreachable(format!("Secret {name:?} could not be read: {error}")),
    })
}

fn refused(text: impl Into<String>) -> BackendError {
    BackendError::Refused(text.into())
}

fn target(text: &str, authorities: Option<&[u8]>, place: &str, field: &'static str) -> Result<Target, BackendError> {
    let not_a_url = || refused(format!("{place} is no connection URL: postgresql://user:password@host:5432/database?sslmode=verify-full"));
    let mut url = Url::parse(text).map_err(|_| not_a_url())?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err(not_a_url());
    }
    let (mut mode, mut kept) = ("prefer".to_owned(), Vec::new());
    for (key, value) in url.query_pairs() {
        match &*key {
            "sslmode" => mode = value.into_owned(),
            // Where the authorities' certificates are is said by the Secret, not by a path in somebody's file system.
            "sslrootcert" => {}
            _ => kept.push((key.into_owned(), value.into_owned())),
        }
    }
    url.set_query(None);
    if !kept.is_empty() {
        url.query_pairs_mut().extend_pairs(kept);
    }
    // `url` writes a blank as +, which only forms read as a blank.
    let text = url.as_str().replace('+', "%20");
    let mut config: Config = text.parse().map_err(|error: tokio_postgres::Error| {
        let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        refused(format!("{place} cannot be used{why}"))
    })?;
    config.connect_timeout(CONNECT_TIMEOUT).application_name("fencedlock");
    let (ssl, verification) = match mode.as_str() {
        "disable" => (SslMode::Disable, None),
        "allow" | "prefer" => (SslMode::Prefer, Some(Verification::of(authorities))),
        "require" => (SslMode::Require, Some(Verification::of(authorities))),
        "verify-ca" => (SslMode::Require, Some(Verification::Chain)),
        "verify-full" => (SslMode::Require, Some(Verification::Full)),
        other => {
            return Err(refused(format!("{place}: sslmode {other:?} is none of disable, allow, prefer, require, verify-ca, verify-full")));
        }
    };
    config.ssl_mode(ssl);
    let tls = verification.map(|verification| tls(verification, authorities, place)).transpose()?;
    Ok(Target { config, tls, field })
}

/// What is demanded of the server's certificate, as libpq does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verification {
    /// Nothing: the connection is encrypted, and the server may be anybody.
    Nothing,
    /// That one of the authorities signed it.
    Chain,
    /// Also that it is for this host.
    Full,
}

impl Verification {
    /// libpq takes `require` for `verify-ca` where there are authorities.
    const fn of(authorities: Option<&[u8]>) -> Self {
        if authorities.is_some() { Self::Chain } else { Self::Nothing }
    }
}

fn tls(verification: Verification, authorities: Option<&[u8]>, place: &str) -> Result<MakeRustlsConnect, BackendError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| refused(format!("TLS cannot be set up: {error}")))?;
    let verifier = if verification == Verification::Nothing {
        Verifier { inner: None, provider, pinned: Vec::new(), checks_name: false }
    } else {
        let pem = authorities.ok_or_else(|| {
            refused(format!(
                "{place}: sslmode=verify-ca and verify-full need the authorities' certificates in key {CA_KEY:?} of the same Secret"
            ))
        })?;
        let (mut roots, mut pinned) = (RootCertStore::empty(), Vec::new());
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let added = certificate.ok().and_then(|certificate| {
                pinned.push(certificate.clone());
                roots.add(certificate).ok()
            });
            added.ok_or_else(|| {
                refused(format!("{place}: key {CA_KEY:?} of the same Secret holds something that is no certificate in PEM"))
            })?;
        }
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| refused(format!("{place}: key {CA_KEY:?} of the same Secret: {error}")))?;
        Verifier { inner: Some(inner), provider, pinned, checks_name: verification == Verification::Full }
    };
    let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// libpq's ways to verify a server, of which rustls has only the strictest.
#[derive(Debug)]
struct Verifier {
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
    /// Certificates that are trusted themselves: a server that signed its own has no other authority.
    pinned: Vec<CertificateDer<'static>>,
    checks_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::{CertificateError as Wrong, Error::InvalidCertificate};
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // The name is looked at last, after everything else was found to be right.
            Err(InvalidCertificate(Wrong::NotValidForName | Wrong::NotValidForNameContext { .. })) if !self.checks_name => {
                Ok(ServerCertVerified::assertion())
            }
            Err(InvalidCertificate(_)) if self.pinned.contains(&end_entity.clone().into_owned()) => {
                if self.checks_name {
                    verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl Target {
    /// Connects, to the primary, with time-outs that keep anything that is done from hanging or from being left open.
    ///
    /// # Errors
    /// When the server cannot be reached, refuses, or is a standby.
    pub(crate) async fn connect(&self) -> Result<Session, BackendError> {
        let connected = if let Some(tls) = &self.tls {
            let (client, connection) = self.config.connect(tls.clone()).await.map_err(|error| self.unconnected(&error))?;
            Session { client, task: tokio::spawn(async { drop(connection.await) }).abort_handle() }
        } else {
            let (client, connection) = self.config.connect(NoTls).await.map_err(|error| self.unconnected(&error))?;
            Session { client, task: tokio::spawn(async { drop(connection.await) }).abort_handle() }
        };
        connected.run(SETTINGS).await?;
        let standby = connected.client.query_one("select pg_is_in_recovery()", &[]).await.map_err(|error| failed(&error))?;
        if standby.get::<_, bool>(0) {
            return Err(refused(format!("{}: the URL leads to a standby: it has to lead to the primary, where writes land", self.field)));
        }
        Ok(connected)
    }

    fn unconnected(&self, error: &tokio_postgres::Error) -> BackendError {
        let host = self.config.get_hosts().first().map_or_else(String::new, |host| match host {
            tokio_postgres::config::Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        });
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        match error.as_db_error() {
            Some(_) => match failed(error) {
                BackendError::Refused(why) => refused(format!("{}: the server at {host}:{port} refuses the connection: {why}", self.field)),
                other => other,
            },
            None => BackendError::Unreachable(format!("{}: {host}:{port}: {}", self.field, chain(error))),
        }
    }
}

/// What each connection begins with. Nothing is looked up in schemas that others can write to.
const SETTINGS: &str = "set search_path = pg_catalog, pg_temp; set statement_timeout = '20s'; set lock_timeout = '5s'; \
                        set idle_in_transaction_session_timeout = '30s'; set client_min_messages = warning";

impl Session {
    /// Runs statements that return nothing.
    pub(crate) async fn run(&self, sql: &str) -> Result<(), BackendError> {
        self.client.batch_execute(sql).await.map_err(|error| failed(&error))
    }
}

/// What an error of the server or the connection says, without what was sent.
pub(crate) fn failed(error: &tokio_postgres::Error) -> BackendError {
    match error.as_db_error() {
        Some(db) => refused(format!("{} (SQLSTATE {})", db.message(), db.code().code())),
        None => BackendError::Unreachable(chain(error)),
    }
}

/// An error with everything that caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(url: &str, authorities: Option<&[u8]>) -> String {
        target(url, authorities, "here", "here").map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_the_secret() {
        for (url, wanted) in [
            ("hunter2", "is no connection URL"),
            ("mysql://app:hunter2@db/app", "is no connection URL"),
            ("postgresql://app:hunter2@db:hunter2/app", "is no connection URL"),
            ("postgresql://app:hunter2@db/app?sslmode=hunted", "\"hunted\""),
            ("postgresql://app:hunter2@db/app?sslmode=verify-full", "ca.crt"),
            ("postgresql://app:hunter2@db/app?nonsense=1", "nonsense"),
        ] {
            let said = said(url, None);
            assert!(said.contains(wanted) && !said.contains("hunter2"), "{url}: {said}");
        }
        assert!(said("postgresql://a@db/a?sslmode=verify-ca", Some(b"junk")).contains("ca.crt"));
        assert_eq!(format!("{:?}", Access::Given { url: "postgresql://a:hunter2@db".into(), authorities: None }), "Access");
    }

    #[test]
    fn a_url_is_taken_as_libpq_takes_it() {
        let parsed =
            target("postgresql://us%40er:p%2Bss@db:6432/app?sslmode=disable&options=-c%20x.y%3D1&sslrootcert=/x", None, "here", "here")
                .unwrap();
        assert_eq!((parsed.config.get_user(), parsed.config.get_password()), (Some("us@er"), Some(&b"p+ss"[..])));
        assert_eq!((parsed.config.get_options(), parsed.config.get_ports()), (Some("-c x.y=1"), &[6432][..]));
        assert!(parsed.tls.is_none());
        for mode in ["allow", "prefer", "require"] {
            assert!(target(&format!("postgres://u@db/app?sslmode={mode}"), None, "here", "here").unwrap().tls.is_some());
        }
    }
}
