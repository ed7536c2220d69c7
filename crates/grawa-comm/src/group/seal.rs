//! Sealing vectors on their way between members: AES-128-GCM, with keys that both ends of a TLS connection derive from it.
//!
//! A round sends a whole model, which a TLS stream would copy several times on its way. So TLS settles who speaks, carries the
//! messages and gives the keys (RFC 8446, section 7.5: exporters); vectors are sealed block by block, and opened where they
//! are to lie. A block's place in the order is its nonce: one that is left out, repeated, changed or of another length does not open.

use crate::Error;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use rustls::Connection;

/// Bytes of vectors that are worked on at a time: so few that they stay in cache between checksum, sealing and sending.
/// Measured: with fewer, waking each other costs processes on the same cores more than that saves.
pub(super) const BLOCK: usize = 1 << 19;
/// The bytes after a block.
pub(super) const TAG: usize = 16;
/// Blocks under one key: 32 GB. RFC 8446 allows 2^24.5 records of 16 kB.
const TURN: u64 = 1 << 16;

/// What seals one direction of a connection, or opens it.
#[derive(Debug)]
pub(super) struct Seal {
    root: Prk,
    key: LessSafeKey,
    next: u64,
}

fn wrong(what: &str) -> Error {
    Error::Connection { why: what.into() }
}

fn key(root: &Prk, turn: u64) -> Result<LessSafeKey, Error> {
    let found = root.expand(&[&turn.to_be_bytes()], &AES_128_GCM).map(UnboundKey::from);
    found.map(LessSafeKey::new).map_err(|_| wrong("no key could be derived"))
}

impl Seal {
    /// That of what is sent by the side that dialled, or by the one that answered.
    pub(super) fn new(connection: &Connection, by_dialler: bool) -> Result<Self, Error> {
        let direction: &[u8] = if by_dialler { b"dials" } else { b"answers" };
        let secret = connection
            .export_keying_material([0; 32], b"EXPORTER-grawa-vectors", Some(direction))
            .map_err(|error| wrong(&error.to_string()))?;
        Self::from_secret(secret)
    }

    fn from_secret(secret: [u8; 32]) -> Result<Self, Error> {
        let root = Prk::new_less_safe(HKDF_SHA256, &secret);
        Ok(Seal { key: key(&root, 0)?, root, next: 0 })
    }

    fn nonce(&mut self) -> Result<Nonce, Error> {
        if self.next > 0 && self.next.is_multiple_of(TURN) {
            self.key = key(&self.root, self.next / TURN)?;
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[4..].copy_from_slice(&self.next.to_be_bytes());
        self.next += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Seals a block where it lies.
    pub(super) fn seal(&mut self, block: &mut [u8]) -> Result<[u8; TAG], Error> {
        let nonce = self.nonce()?;
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::empty(), block);
        let tag = tag.map_err(|_| wrong("a block could not be sealed"))?;
        let mut bytes = [0; TAG];
        bytes.copy_from_slice(tag.as_ref());
        Ok(bytes)
    }

    /// Opens a block where it lies.
    pub(super) fn open(&mut self, block: &mut [u8], tag: [u8; TAG]) -> Result<(), Error> {
        let nonce = self.nonce()?;
        match self.key.open_in_place_separate_tag(nonce, Aad::empty(), Tag::from(tag), block, 0..) {
            Ok(_) => Ok(()),
            Err(_) => Err(wrong("a block that was not sealed by the other side, or not in this place")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both() -> [Seal; 2] {
        [0, 1].map(|_| Seal::from_secret([7; 32]).unwrap())
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens_and_what_is_changed_does_not(body in proptest::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, bit in 0u8..8) {
            let ([mut seal, mut open], mut bytes) = (both(), body.clone());
            let tag = seal.seal(&mut bytes).unwrap();
            let mut changed = [&bytes[..], &tag].concat();
            open.open(&mut bytes, tag).unwrap();
            prop_assert_eq!(&bytes, &body);
            changed[at.index(body.len() + TAG)] ^= 1 << bit;
            let (block, tag) = changed.split_at_mut(body.len());
            prop_assert!(both()[0].open(block, tag.try_into().unwrap()).is_err());
        }
    }

    #[test]
    fn blocks_open_in_their_order_only_and_keys_are_turned() {
        let [mut seal, mut open] = both();
        seal.next = TURN - 2;
        open.next = TURN - 2;
        for n in 0..5u8 {
            let (mut first, mut second) = ([n; 40], [n; 40]);
            let tag = seal.seal(&mut first).unwrap();
            let later = seal.seal(&mut second).unwrap();
            assert_ne!(first, second, "the same bytes twice look different");
            open.open(&mut first, tag).unwrap();
            if n == 4 {
                assert!(open.open(&mut first, tag).is_err(), "a block was taken twice");
            } else {
                open.open(&mut second, later).unwrap();
            }
            assert!(n == 4 || first == [n; 40]);
        }
        let sealed = |key: &LessSafeKey| {
            let (nonce, mut bytes) = (Nonce::assume_unique_for_key([0; NONCE_LEN]), [0; 16]);
            key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut bytes).map(|_| bytes).unwrap()
        };
        let [old, new] = [0, 1].map(|turn| sealed(&key(&seal.root, turn).unwrap()));
        assert_ne!(old, new);
    }
}
