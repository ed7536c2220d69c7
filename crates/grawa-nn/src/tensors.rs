//! Tensors in safetensors files: the only module that reads and writes them.
//!
//! A file is read as a whole and checked before use. It is written under a temporary name and renamed, so that a
//! reader never finds a partial file. A tensor that is missing, unknown, or of another shape or type is an error that
//! names the file, the tensor, what was found and what was expected.
//!
//! Every file has a checksum of itself in its metadata, under [`CHECKSUM`]: the CRC-32C of the names, types, shapes and
//! numbers of all tensors and of all other metadata, in the order of the names. A file whose content does not agree
//! with it is not used. Files without one, of other programs and of older versions, are read as they are; and other
//! programs read ours, for whom it is one more word.

use crate::Error;
use crc_fast::CrcAlgorithm::Crc32Iscsi;
use grawa_core::Layout;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, View};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its dimensions; none for a scalar.
    pub shape: Vec<usize>,
    /// Its values.
    pub data: Data,
}

/// The values of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// 32-bit floating point.
    F32(Vec<f32>),
    /// 64-bit integers.
    I64(Vec<i64>),
}

impl Tensor {
    /// A tensor of floating-point numbers.
    pub fn f32(shape: &[usize], data: Vec<f32>) -> Self {
        Tensor { shape: shape.into(), data: Data::F32(data) }
    }

    /// A tensor of integers.
    pub fn i64(shape: &[usize], data: Vec<i64>) -> Self {
        Tensor { shape: shape.into(), data: Data::I64(data) }
    }

    fn describe(&self) -> String {
        let kind = if let Data::F32(_) = self.data { "f32" } else { "i64" };
        format!("{kind} of shape {:?}", self.shape)
    }
}

/// The key of a file's checksum in its metadata.
pub const CHECKSUM: &str = "crc32c";

/// The metadata of a file: words by name, in the order of the names.
pub type Metadata = BTreeMap<String, String>;

/// The tensors of a file, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    path: PathBuf,
    owner: String,
    tensors: BTreeMap<String, Tensor>,
    /// What the file says besides its tensors.
    pub metadata: Metadata,
}

impl Tensors {
    /// No tensors yet. `owner` is the network's name, for messages.
    pub fn new(path: &Path, owner: &str) -> Self {
        Tensors { path: path.into(), owner: owner.into(), ..Tensors::default() }
    }

    /// Reads a file.
    pub fn read(path: &Path, owner: &str) -> Result<Self, Error> {
        let io = |source| Error::Io { action: "read", path: path.into(), source };
        // A device or a pipe may never end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::NotSafetensors { path: path.into(), why: "it is not a file".into() });
        }
        let bytes = std::fs::read(path).map_err(io)?;
        Tensors::parse(&bytes, path, owner)
    }

    /// Parses the bytes of a file.
    pub fn parse(bytes: &[u8], path: &Path, owner: &str) -> Result<Self, Error> {
        let wrong = |why: String| Error::NotSafetensors { path: path.into(), why };
        let file = SafeTensors::deserialize(bytes)
            .map_err(|error| wrong(of_torch(bytes, path).unwrap_or(error.to_string())))?;
        let mut all = Tensors::new(path, owner);
        all.metadata = metadata_of(bytes).map_err(wrong)?;
        for (name, view) in file.iter() {
            let data = match view.dtype() {
                Dtype::F32 => {
                    Data::F32(view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
                }
                Dtype::I64 => {
                    Data::I64(view.data().as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)).collect())
                }
                other => {
                    return Err(wrong(format!(
                        "tensor '{name}' is of type {other:?}; only F32 and I64 are read"
                    )));
                }
            };
            all.tensors.insert(name.to_owned(), Tensor { shape: view.shape().into(), data });
        }
        match all.metadata.remove(CHECKSUM) {
            Some(expected) if expected != all.checksum() => {
                Err(Error::DamagedTensors { path: path.into(), found: all.checksum(), expected })
            }
            _ => Ok(all),
        }
    }

    /// The checksum of the content. It does not depend on how the file's header is written.
    fn checksum(&self) -> String {
        let mut digest = crc_fast::Digest::new(Crc32Iscsi);
        // Each piece with its length, so that no two contents have the same bytes.
        let mut add = |bytes: &[u8]| {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        for (name, tensor) in &self.tensors {
            add(name.as_bytes());
            add(tensor.describe().as_bytes());
            add(&tensor.data.bytes());
        }
        for (key, value) in self.metadata.iter().filter(|(key, _)| *key != CHECKSUM) {
            add(key.as_bytes());
            add(value.as_bytes());
        }
        format!("{:08x}", digest.finalize())
    }

    /// Adds a tensor.
    pub fn put(&mut self, name: impl Into<String>, tensor: Tensor) {
        self.tensors.insert(name.into(), tensor);
    }

    /// Adds a tensor for each span of a vector; their names begin with `prefix`.
    pub(crate) fn put_vector(&mut self, prefix: &str, layout: &Layout, vector: &[f32]) {
        for span in layout.spans() {
            let tensor = Tensor::f32(span.shape(), vector[span.range()].to_vec());
            self.put(format!("{prefix}{}", span.name()), tensor);
        }
    }

    /// The values of all tensors of a layout as one vector; their names begin with `prefix`.
    pub fn vector(&self, prefix: &str, layout: &Layout) -> Result<Vec<f32>, Error> {
        let mut vector = Vec::with_capacity(layout.len());
        for span in layout.spans() {
            vector.extend_from_slice(self.f32(&format!("{prefix}{}", span.name()), span.shape())?);
        }
        Ok(vector)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of this name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// The values of a floating-point tensor, which must have this shape.
    pub fn f32(&self, name: &str, shape: &[usize]) -> Result<&[f32], Error> {
        let tensor = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        match &tensor.data {
            Data::F32(numbers) if tensor.shape == shape => Ok(numbers),
            _ => Err(self.differs(name, tensor, format!("f32 of shape {shape:?}"))),
        }
    }

    /// The values of an integer tensor, which must have this shape.
    pub fn i64(&self, name: &str, shape: &[usize]) -> Result<&[i64], Error> {
        let tensor = self.tensors.get(name).ok_or_else(|| self.missing(name))?;
        match &tensor.data {
            Data::I64(numbers) if tensor.shape == shape => Ok(numbers),
            _ => Err(self.differs(name, tensor, format!("i64 of shape {shape:?}"))),
        }
    }

    /// Checks that every name is known.
    pub(crate) fn all_known(&self, mut known: impl FnMut(&str) -> bool) -> Result<(), Error> {
        match self.names().find(|name| !known(name)) {
            None => Ok(()),
            Some(name) => Err(Error::TensorUnknown {
                path: self.path.clone(),
                name: name.into(),
                network: self.owner.clone(),
            }),
        }
    }

    /// The error for a missing tensor.
    pub(crate) fn missing(&self, name: &str) -> Error {
        Error::TensorMissing { path: self.path.clone(), name: name.into(), network: self.owner.clone() }
    }

    /// The error for a tensor of another shape or type.
    pub(crate) fn differs(&self, name: &str, found: &Tensor, expected: String) -> Error {
        let (path, name, network) = (self.path.clone(), name.into(), self.owner.clone());
        Error::TensorDiffers { path, name, network, found: found.describe(), expected }
    }

    /// Writes the file under a temporary name and renames it. An existing file is not overwritten.
    pub fn write(&self) -> Result<(), Error> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { action, path, source }
        };
        if self.path.exists() {
            let there = std::io::Error::new(
                std::io::ErrorKind::AlreadyExists,
                "it is there already, and is not overwritten",
            );
            return Err(io("write", &self.path)(there));
        }
        let pieces = self.pieces()?;
        let mut aside = self.path.clone().into_os_string();
        aside.push(format!(".partial-{}", std::process::id()));
        let aside = PathBuf::from(aside);
        let written = std::fs::File::create_new(&aside)
            .and_then(|mut file| {
                pieces.iter().try_for_each(|piece| file.write_all(piece)).and_then(|()| file.sync_all())
            })
            .and_then(|()| std::fs::rename(&aside, &self.path));
        written.map_err(|error| {
            // The write has failed already: its error is the one to report.
            let _ = std::fs::remove_file(&aside);
            io("write", &self.path)(error)
        })
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        Ok(self.pieces()?.concat())
    }

    /// The same in pieces, without a copy of the tensors: the header, then each tensor in the order of the file.
    pub fn pieces(&self) -> Result<Vec<Cow<'_, [u8]>>, Error> {
        let wrong = |error: safetensors::SafeTensorError| Error::NotSafetensors {
            path: self.path.clone(),
            why: error.to_string(),
        };
        for tensor in self.tensors.values() {
            TensorView::new(tensor.data.kind(), tensor.shape.clone(), &tensor.data.bytes()).map_err(wrong)?;
        }
        let order = RefCell::new(Vec::new());
        let outlines = self.tensors.iter().map(|(name, tensor)| (name, Outline { tensor, order: &order }));
        let mut header = safetensors::serialize(outlines, None).map_err(wrong)?;
        let mut metadata = self.metadata.clone();
        metadata.insert(CHECKSUM.into(), self.checksum());
        header = with_metadata(&header, &metadata);
        // The library reserves memory for the tensors.
        header.shrink_to_fit();
        let tensors = order.into_inner().into_iter().map(|tensor: &Tensor| tensor.data.bytes());
        Ok(std::iter::once(Cow::Owned(header)).chain(tensors).collect())
    }
}

/// A tensor as the library that writes the header sees it: without values. It notes in which order the values are asked for.
struct Outline<'a, 'b> {
    tensor: &'a Tensor,
    order: &'b RefCell<Vec<&'a Tensor>>,
}

impl View for Outline<'_, '_> {
    fn dtype(&self) -> Dtype {
        self.tensor.data.kind()
    }

    fn shape(&self) -> &[usize] {
        &self.tensor.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.order.borrow_mut().push(self.tensor);
        Cow::Borrowed(&[])
    }

    fn data_len(&self) -> usize {
        self.tensor.data.bytes().len()
    }
}

impl Data {
    fn kind(&self) -> Dtype {
        match self {
            Data::F32(_) => Dtype::F32,
            Data::I64(_) => Dtype::I64,
        }
    }

    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Data::F32(numbers) => little_endian(numbers, |x| x.to_le_bytes()),
            Data::I64(numbers) => little_endian(numbers, |x| x.to_le_bytes()),
        }
    }
}

/// The bytes of numbers as a file has them. Most machines have them in memory, and a checkpoint can be large.
fn little_endian<T: bytemuck::NoUninit, const N: usize>(
    numbers: &[T],
    bytes: impl Fn(&T) -> [u8; N],
) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => Cow::Borrowed(bytemuck::cast_slice(numbers)),
        false => Cow::Owned(numbers.iter().flat_map(bytes).collect()),
    }
}

/// The metadata of a file's bytes.
fn metadata_of(bytes: &[u8]) -> Result<Metadata, String> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| error.to_string())?;
    Ok(header.metadata().iter().flatten().map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// A file with metadata before its tensors' places. The library that writes the file would put several words in a random order.
fn with_metadata(bytes: &[u8], metadata: &Metadata) -> Vec<u8> {
    let (length, rest) =
        bytes.split_first_chunk().map_or((0, bytes), |(n, rest)| (u64::from_le_bytes(*n), rest));
    let (header, tensors) = rest.split_at(rest.len().min(length as usize));
    let places = header.trim_ascii().strip_prefix(b"{").unwrap_or(header);
    let words: serde_json::Value = metadata.clone().into_iter().collect();
    let comma = if places == b"}" { "" } else { "," };
    let mut header = format!("{{\"__metadata__\":{words}{comma}").into_bytes();
    header.extend_from_slice(places);
    // Tensors begin at a multiple of eight bytes, so that they can be mapped into memory.
    header.resize(header.len().next_multiple_of(8), b' ');
    [&(header.len() as u64).to_le_bytes()[..], &header, tensors].concat()
}

/// How to convert a file of `torch.save`: a zip archive, or a pickle of protocol 2 and above.
fn of_torch(bytes: &[u8], path: &Path) -> Option<String> {
    let is_torch = bytes.starts_with(b"PK\x03\x04") || matches!(bytes, [0x80, 2..=5, ..]);
    let load = format!("torch.load({path:?}, map_location=\"cpu\", weights_only=True)");
    let save = format!("safetensors.torch.save_file({load}, {:?})", path.with_extension("safetensors"));
    is_torch.then(|| format!("it is one of torch.save; convert its state dict in Python: {save}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn some() -> Tensors {
        let mut tensors = Tensors::new(Path::new("file"), "net");
        tensors.put("a", Tensor::f32(&[2, 1], vec![1.5, f32::NEG_INFINITY]));
        tensors.put("n", Tensor::i64(&[], vec![-7]));
        tensors
    }

    #[test]
    fn what_is_written_reads_back() {
        let tensors = some();
        assert_eq!(Tensors::parse(&tensors.to_bytes().unwrap(), Path::new("file"), "net").unwrap(), tensors);
    }

    /// PyTorch's own files are named, with what converts them; a header that begins alike is no such file.
    #[test]
    fn a_file_of_torch_is_named() {
        let read = |bytes: &[u8]| {
            Tensors::parse(bytes, Path::new("old/net.pt"), "net").map_err(|error| error.to_string())
        };
        for bytes in [
            &b"PK\x03\x04\0\0\x08\x08 archive/data.pkl"[..],
            b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j",
            b"\x80\x04\x95\0\0\0",
        ] {
            let text = read(bytes).unwrap_err();
            assert!(
                text.contains("torch.save") && text.contains("save_file(torch.load(\"old/net.pt\""),
                "{text}"
            );
            assert!(text.contains("\"old/net.safetensors\")"), "{text}");
        }
        assert!(!read(b"no tensors at all").unwrap_err().contains("torch"));
        for length in [0x280, 0x10280] {
            let mut tensors = some();
            let empty = tensors.to_bytes().unwrap()[..8].to_vec();
            let bare = u64::from_le_bytes(empty.try_into().unwrap()) as usize;
            let words = "x".repeat(length - bare - r#""__metadata__":{"k":""},"#.len());
            tensors.metadata.insert("k".into(), words);
            let bytes = tensors.to_bytes().unwrap();
            let found = Tensors::parse(&bytes, Path::new("net"), "net").unwrap();
            assert_eq!(found.tensors.len(), 2, "{:?}", &bytes[..8]);
        }
    }

    /// The same words give the same bytes, and the tensors' bytes are those of a file without them.
    #[test]
    fn metadata_goes_both_ways() {
        let plain = safetensors::serialize(
            &BTreeMap::from([
                ("a", TensorView::new(Dtype::F32, vec![2, 1], &some().tensors["a"].data.bytes()).unwrap()),
                ("n", TensorView::new(Dtype::I64, vec![], &some().tensors["n"].data.bytes()).unwrap()),
            ]),
            None,
        )
        .unwrap();
        assert_eq!(
            Tensors::parse(&plain, Path::new("file"), "net").unwrap(),
            some(),
            "another program's file"
        );
        let words =
            [("network", "resnet20"), ("classes", r#"["a \"b\"", "ü"]"#), ("step", "9"), ("mean", "[0.5]")];
        let metadata: Metadata = words.map(|(key, value)| (key.into(), value.into())).into();
        let bytes = Tensors { metadata, ..some() }.to_bytes().unwrap();
        let read = Tensors::parse(&bytes, Path::new("file"), "net").unwrap();
        assert_eq!(
            read.metadata.keys().map(String::as_str).collect::<Vec<_>>(),
            ["classes", "mean", "network", "step"]
        );
        assert_eq!(read.metadata["classes"], words[1].1);
        assert_eq!(Tensors { metadata: Metadata::new(), ..read }, some());
        assert!(bytes.ends_with(&plain[plain.len() - 16..]) && bytes.len() % 8 == plain.len() % 8);
        let mut none = Tensors::new(Path::new("file"), "net");
        none.metadata.insert("step".into(), "1".into());
        assert_eq!(Tensors::parse(&none.to_bytes().unwrap(), Path::new("file"), "net").unwrap(), none);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let tensors = some();
        assert_eq!(tensors.f32("a", &[2, 1]).unwrap(), [1.5, f32::NEG_INFINITY]);
        assert_eq!(tensors.i64("n", &[]).unwrap(), [-7]);
        let words = |result: Result<&[f32], Error>| result.unwrap_err().to_string();
        assert_eq!(
            words(tensors.f32("b", &[1])),
            "file has no tensor 'b', which net needs; is it of another network?"
        );
        assert_eq!(
            words(tensors.f32("a", &[2])),
            "tensor 'a' of file is f32 of shape [2, 1], but net needs f32 of shape [2]"
        );
        assert!(words(tensors.f32("n", &[])).contains("i64 of shape []"));
        assert!(tensors.all_known(|name| name == "a").unwrap_err().to_string().contains("'n'"));
    }

    #[test]
    fn a_file_is_never_overwritten() {
        let path = std::env::temp_dir().join(format!("grawa-tensors-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let tensors = Tensors { path: path.clone(), ..some() };
        tensors.write().unwrap();
        assert!(tensors.write().unwrap_err().to_string().contains("is not overwritten"));
        assert_eq!(Tensors::read(&path, "net").unwrap(), tensors);
        std::fs::remove_file(&path).unwrap();
        assert!(Tensors::read(&path, "net").unwrap_err().to_string().contains("cannot read"));
    }

    /// Each bit of a file, flipped: the file is refused, or nothing that it says is another thing. So it is with any
    /// tensor, name and word.
    #[test]
    fn a_flipped_bit_is_found() {
        let mut tensors = some();
        tensors.put("b.weight", Tensor::f32(&[3], vec![0.25, -3.5, 1e-8]));
        tensors.metadata = [("mean", "[0.3]"), ("classes", r#"["cat", "dog"]"#)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let bytes = tensors.to_bytes().unwrap();
        let (mut damaged, mut harmless) = (0, 0);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                match Tensors::parse(&flipped, Path::new("file"), "net") {
                    Err(Error::DamagedTensors { .. }) => damaged += 1,
                    Err(_) => {}
                    Ok(mut read) => {
                        // The name of the checksum itself: then the file has none, and one word more.
                        read.metadata.retain(|key, _| tensors.metadata.contains_key(key));
                        assert_eq!(read, tensors, "bit {bit} of byte {at}");
                        harmless += 1;
                    }
                }
            }
        }
        assert!(damaged > 8 * 28 && harmless < 8 * CHECKSUM.len() + 64, "{damaged} {harmless}");
        let mut flipped = bytes.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let words = Tensors::parse(&flipped, Path::new("file"), "net").unwrap_err().to_string();
        assert!(
            words.starts_with("file is damaged: its checksum is ") && words.contains("'crc32c'"),
            "{words}"
        );
    }

    /// What other programs do with our files: they read them, and write them with another header and the same metadata.
    #[test]
    fn other_programs_read_the_files_and_write_them_again() {
        let mut tensors = some();
        tensors.metadata.insert("step".into(), "9".into());
        let bytes = tensors.to_bytes().unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.tensor("n").unwrap().data(), (-7i64).to_le_bytes());
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let again = safetensors::serialize(read.iter(), header.metadata().clone()).unwrap();
        assert_eq!(Tensors::parse(&again, Path::new("file"), "net").unwrap(), tensors);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), flip: prop::sample::Index, to: u8) {
            let _ = Tensors::parse(&bytes, Path::new("x"), "net");
            let mut near = some().to_bytes().unwrap();
            let at = flip.index(near.len());
            near[at] = to;
            let _ = Tensors::parse(&near, Path::new("x"), "net");
            let _ = Tensors::parse(&near[..at], Path::new("x"), "net");
        }
    }
}
