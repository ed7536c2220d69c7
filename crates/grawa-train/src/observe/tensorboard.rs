//! TensorBoard's event files: scalars only, written by hand.
//!
//! A file is a row of records. A record is its length (eight bytes, little-endian), a checksum of these eight bytes, the
//! data, and a checksum of the data; a checksum is the masked CRC-32C. The data is a protobuf message `Event`: field 1 is the
//! time (a double), 2 the step, 3 the file's version (the first record), 5 a `Summary`, whose fields 1 are `Value`s with a
//! tag (1) and a float (2). `oracle/read-tensorboard` has PyPI's `tensorboard` read it.

use super::appended::Appended;
use crate::checkpoint::io;
use crate::{Error, Event};
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use std::fs;
use std::path::Path;

/// The folder of the file.
pub const TENSORBOARD: &str = "tensorboard";
/// TensorBoard takes files with `tfevents` in their names.
const NAME: &str = "events.out.tfevents.0.grawa";

/// A new file with the events so far and their times; an existing one is replaced.
pub(super) fn create<'a>(
    folder: &Path,
    so_far: impl IntoIterator<Item = &'a (Event, f64)>,
    now: f64,
) -> Result<Appended, Error> {
    let folder = folder.join(TENSORBOARD);
    let path = folder.join(NAME);
    let mut bytes = record(&[double(1, now), text(3, "brain.Event:2")].concat());
    bytes.extend(so_far.into_iter().flat_map(|(event, wall)| records(event, *wall)));
    fs::create_dir_all(&folder).map_err(io("write", &path))?;
    Appended::create(path, &folder.join("new"), &bytes)
}

/// The record of an event, if it has scalars.
pub(super) fn records(event: &Event, wall: f64) -> Vec<u8> {
    let scalars = scalars(event);
    if scalars.is_empty() {
        return Vec::new();
    }
    let values: Vec<u8> = scalars
        .iter()
        .flat_map(|(tag, value)| message(1, &[text(1, tag), float(2, *value as f32)].concat()))
        .collect();
    record(&[double(1, wall), integer(2, event.place().steps), message(5, &values)].concat())
}

/// What TensorBoard shows of an event.
fn scalars(event: &Event) -> Vec<(String, f64)> {
    match event {
        Event::Round(round) => {
            let mut scalars = vec![("train/rate".to_owned(), round.rate)];
            scalars.extend(round.loss.map(|loss| ("train/loss".to_owned(), loss)));
            for share in &round.workers {
                scalars.extend(share.loss.map(|loss| (format!("loss/worker {}", share.worker), loss)));
            }
            // Of the round of all, which is the last; by layer, the mean over the layers.
            if let Some(mixed) = round.mixed.last() {
                for (at, worker) in mixed.workers.iter().enumerate() {
                    let mean = mixed.mean_weight(at);
                    scalars.push((format!("weight/worker {worker}"), mean));
                }
            }
            scalars
        }
        Event::Evaluated(evaluated) => evaluated
            .models
            .iter()
            .flat_map(|model| {
                let error = (format!("test/error of {}", model.which), model.error());
                let loss = model.loss.map(|loss| (format!("test/loss of {}", model.which), loss));
                [Some(error), loss]
            })
            .flatten()
            .collect(),
        _ => Vec::new(),
    }
}

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let sum = |bytes: &[u8]| {
        (crc_fast::checksum(Crc32Iscsi, bytes) as u32)
            .rotate_right(15)
            .wrapping_add(0xa282_ead8)
            .to_le_bytes()
    };
    [&length[..], &sum(&length), data, &sum(data)].concat()
}

/// A protobuf number of seven bits a byte.
fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn field(number: u64, kind: u64, data: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | kind), data].concat()
}

fn integer(number: u64, value: u64) -> Vec<u8> {
    field(number, 0, &varint(value))
}

fn double(number: u64, value: f64) -> Vec<u8> {
    field(number, 1, &value.to_le_bytes())
}

fn message(number: u64, data: &[u8]) -> Vec<u8> {
    field(number, 2, &[&varint(data.len() as u64)[..], data].concat())
}

fn text(number: u64, text: &str) -> Vec<u8> {
    message(number, text.as_bytes())
}

fn float(number: u64, value: f32) -> Vec<u8> {
    field(number, 5, &value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes that tensorboard's own `RecordWriter` writes for the same messages.
    #[test]
    fn the_golden_bytes() {
        let version = record(&[double(1, 1.0), text(3, "brain.Event:2")].concat());
        assert_eq!(hex(&version), GOLDEN_VERSION);
        let value = message(1, &[text(1, "train/loss"), float(2, 0.25)].concat());
        let scalar = record(&[double(1, 2.0), integer(2, 300), message(5, &value)].concat());
        assert_eq!(hex(&scalar), GOLDEN_SCALAR);
    }

    const GOLDEN_VERSION: &str =
        "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a";
    const GOLDEN_SCALAR: &str =
        "2100000000000000017becf609000000000000004010ac022a130a110a0a747261696e2f6c6f7373150000803ee89dc1a5";

    #[test]
    fn the_file_is_a_row_of_records_and_a_resume_writes_it_anew() {
        let folder = tempfile::tempdir().unwrap();
        let events: Vec<(Event, f64)> =
            sample::run("lgrawa", 3, 4).into_iter().zip((0..).map(f64::from)).collect();
        let mut board = create(folder.path(), [], 5.0).unwrap();
        for (event, wall) in &events {
            board.append(&records(event, *wall)).unwrap();
        }
        let path = folder.path().join(TENSORBOARD).join(NAME);
        let bytes = fs::read(&path).unwrap();
        let (mut rest, mut count) = (&bytes[..], 0);
        while let Some((length, tail)) = rest.split_first_chunk::<8>() {
            let length = u64::from_le_bytes(*length) as usize;
            assert_eq!(rest[..length + 16], record(&tail[4..4 + length]));
            rest = &tail[length + 8..];
            count += 1;
        }
        assert_eq!((rest.len(), count), (0, 1 + 4 + 2));
        create(folder.path(), &events, 5.0).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn weights_by_layer_are_shown_as_their_mean() {
        let events = sample::run("lgrawa", 3, 1);
        let shown = events.iter().flat_map(scalars).collect::<Vec<_>>();
        let find = |tag: &str| shown.iter().find(|(name, _)| name == tag).unwrap().1;
        assert!((find("weight/worker 2") - 0.5).abs() < 1e-7);
        assert_eq!((find("train/rate"), find("loss/worker 1")), (0.1, 2.0 / 3.0));
    }
}
