//! TLS with the key of a run. Whoever holds the key may join.
//!
//! The key is a certificate authority. Every holder signs a certificate for itself, and trusts those that the key signed, on both
//! sides of every connection (TLS 1.3). There is no other secret.
//!
//! A member's token is the digest of its certificate. So nobody can say hello as another member without that member's private
//! key, which never leaves its process.

use crate::Error;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::crypto::{CryptoProvider, ring as provided};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;

/// The name in all certificates. What counts is who signed them.
const NAME: &str = "grawa.run";

/// How connections are protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// Not at all: for a trusted network.
    Plain,
    /// Only holders of the key can connect, and nobody else can read or change the data.
    Tls(Arc<Keys>),
}

/// The certificate of a holder of the key.
#[derive(Debug)]
pub struct Keys {
    authority: Arc<KeyPair>,
    token: u64,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

const NO_KEY: &str =
    "there is no such file; `grawa key new FILE` makes a key, and all machines of a run need the same";

impl Security {
    /// With the key in this file. Only its owner may have access to the file.
    pub fn with_key(path: &Path) -> Result<Self, Error> {
        let wrong = |why: String| Error::Key { path: path.into(), why };
        let failed = |error: std::io::Error| wrong(error.to_string());
        let missing = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => wrong(NO_KEY.into()),
            _ => failed(error),
        };
        let file = File::open(path).map_err(missing)?;
        if let Some(mode) = shared_mode(&file).map_err(failed)? {
            let why = format!(
                "others than its owner have access to it (mode {mode:04o}), and whoever holds it can join; run: chmod 600 {}",
                path.display()
            );
            return Err(wrong(why));
        }
        let pem = std::io::read_to_string(file).map_err(failed)?;
        let key = KeyPair::from_pem(&pem)
            .map_err(|error| wrong(format!("{error}; it is not a key written by `grawa key new`")))?;
        Ok(Security::Tls(Arc::new(keys(Arc::new(key)).map_err(wrong)?)))
    }

    /// The same with a new certificate, and so a new token.
    pub(crate) fn with_new_certificate(self) -> Result<Self, Error> {
        let Security::Tls(own) = self else { return Ok(Security::Plain) };
        let another = keys(Arc::clone(&own.authority)).map_err(|why| Error::Connection { why })?;
        Ok(Security::Tls(Arc::new(another)))
    }

    /// The token of its certificate, if it has one.
    pub(crate) fn token(&self) -> Option<u64> {
        if let Security::Tls(keys) = self { Some(keys.token) } else { None }
    }

    /// This side of a TLS connection, unless connections are plain.
    pub(crate) fn connection(&self, dials: bool) -> Result<Option<Connection>, Error> {
        let wrong = |error: rustls::Error| Error::Connection { why: error.to_string() };
        let Security::Tls(keys) = self else { return Ok(None) };
        if dials {
            let name =
                ServerName::try_from(NAME).map_err(|error| Error::Connection { why: error.to_string() })?;
            return Ok(Some(ClientConnection::new(Arc::clone(&keys.client), name).map_err(wrong)?.into()));
        }
        Ok(Some(ServerConnection::new(Arc::clone(&keys.server)).map_err(wrong)?.into()))
    }
}

/// The token of a certificate.
pub(crate) fn token_of(certificate: &CertificateDer<'_>) -> u64 {
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    digest.as_ref().iter().take(8).fold(0, |token, byte| token << 8 | u64::from(*byte))
}

/// Writes a new key to a file that does not exist yet, readable by its owner alone.
pub fn new_key(path: &Path) -> Result<(), Error> {
    let wrong = |why: String| Error::Key { path: path.into(), why };
    let key = KeyPair::generate().map_err(|error| wrong(error.to_string()))?;
    write_new(path, key.serialize_pem().as_bytes()).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => wrong("it exists and is not overwritten; choose another name".into()),
        _ => wrong(error.to_string()),
    })
}

/// Writes a temporary file for its owner alone, and renames it when it is complete.
fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".key-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    // The name must survive a power cut, too. Only on Unix can folders be opened like files.
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

/// The mode of this user's file if others have access to it. (ssh has the same rule for its keys.)
fn shared_mode(file: &File) -> std::io::Result<Option<u32>> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let (about, me) = (file.metadata()?, rustix::process::geteuid().as_raw());
        let mode = about.mode() & 0o7777;
        Ok((about.uid() == me && mode & 0o077 != 0).then_some(mode))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(None)
    }
}

fn keys(authority: Arc<KeyPair>) -> Result<Keys, String> {
    let text = |error: rcgen::Error| error.to_string();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, "grawa run");
    // Every holder makes this certificate anew. Its name and its key are always the same, and those are trusted.
    let root = params.self_signed(&*authority).map_err(text)?;
    let issuer = Issuer::new(params, &*authority);
    let own = KeyPair::generate().map_err(text)?;
    let mut params = CertificateParams::new(vec![NAME.into()]).map_err(text)?;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&own, &issuer).map_err(text)?;

    let text = |error: rustls::Error| error.to_string();
    let mut roots = RootCertStore::empty();
    roots.add(root.der().clone()).map_err(text)?;
    let roots = Arc::new(roots);
    let provider = Arc::new(CryptoProvider {
        // The fastest first: a round sends a whole model.
        cipher_suites: vec![
            provided::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provided::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..provided::default_provider()
    });
    let chain = vec![certificate.der().clone()];
    let private = || PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own.serialize_der()));
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(text)?
        .with_root_certificates(Arc::clone(&roots))
        .with_client_auth_cert(chain.clone(), private())
        .map_err(text)?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(text)?
        .with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
        .with_single_cert(chain, private())
        .map_err(text)?;
    // Connections are never resumed.
    server.send_tls13_tickets = 0;
    let token = token_of(certificate.der());
    Ok(Keys { authority, token, client: Arc::new(client), server: Arc::new(server) })
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::fs::{Permissions, metadata, read_dir, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_of_a_key_has_access() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        new_key(&path).unwrap();
        assert_eq!(metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert!(new_key(&path).unwrap_err().to_string().contains("not overwritten"));
        assert_eq!(read_dir(folder.path()).unwrap().count(), 1, "a temporary file was left");
        for (mode, is_good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)]
        {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match Security::with_key(&path) {
                Ok(_) => assert!(is_good, "{mode:o}"),
                Err(error) => {
                    let expected = format!("(mode {mode:04o})");
                    let error = error.to_string();
                    assert!(!is_good && error.contains(&expected) && error.contains("chmod 600"), "{error}");
                }
            }
        }
    }
}
