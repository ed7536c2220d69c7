//! Loads NVIDIA's libraries at run time, and says which are missing and how to get them.
//!
//! The build needs nothing of CUDA. Each library is first loaded here by path; only loaded libraries are used, so a missing one is
//! an error with a remedy and never a panic later. The search order is: the folders of the variable `GRAWA_CUDA_PATH`, those of
//! Python's NVIDIA wheels, the usual folders of a CUDA installation, and the system's own search. Relative paths in the environment
//! or the `PATH` are not searched: a library is code and must not come from whatever the working folder is.

use crate::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The variable that names folders to search first, separated by colons.
pub const VARIABLE: &str = "GRAWA_CUDA_PATH";

/// An NVIDIA library that the engine can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The driver.
    Driver,
    /// The kernel compiler.
    Nvrtc,
    /// Convolutions for wide layers.
    Cudnn,
    /// All-reduce between GPUs.
    Nccl,
}

impl Name {
    /// All libraries.
    pub const ALL: [Name; 4] = [Name::Driver, Name::Nvrtc, Name::Cudnn, Name::Nccl];

    fn files(self) -> &'static [&'static str] {
        match self {
            Name::Driver => &["libcuda.so.1", "libcuda.so"],
            Name::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Name::Cudnn => &["libcudnn.so.9", "libcudnn.so"],
            Name::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }

    /// What it is for.
    pub fn purpose(self) -> &'static str {
        match self {
            Name::Driver => "the driver: nothing runs on a GPU without it",
            Name::Nvrtc => "compiles the kernels for this GPU",
            Name::Cudnn => {
                "fast convolutions for wide layers; needed for tf32, optional for bf16, unused for f32"
            }
            Name::Nccl => "rounds between several GPUs; not needed with one",
        }
    }

    /// How to get it.
    pub fn remedy(self) -> &'static str {
        match self {
            Name::Driver => "install NVIDIA's driver (580 or newer)",
            Name::Nvrtc => "pip install nvidia-cuda-nvrtc, or install CUDA 13",
            Name::Cudnn => "pip install nvidia-cudnn-cu13, or install cuDNN 9",
            Name::Nccl => "pip install nvidia-nccl-cu13, or use one GPU (machine.cards = 1)",
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Name::Driver => "libcuda",
            Name::Nvrtc => "libnvrtc",
            Name::Cudnn => "libcudnn",
            Name::Nccl => "libnccl",
        })
    }
}

/// Loads a library once and keeps it loaded. Returns its path, or what was tried. Libraries are loaded on first use; the compiler
/// is loaded before cuDNN, which uses it.
pub fn open(name: Name) -> Result<&'static Path, Error> {
    static FOUND: [OnceLock<Result<PathBuf, Vec<String>>>; 4] = [const { OnceLock::new() }; 4];
    if name == Name::Cudnn {
        // Without it cuDNN has fewer kernels, but works.
        let _ = open(Name::Nvrtc);
    }
    match FOUND[name as usize].get_or_init(|| search(name)) {
        Ok(path) => Ok(path),
        Err(tried) => Err(Error::LibraryMissing {
            library: name.to_string(),
            tried: tried.clone(),
            remedy: name.remedy().to_owned(),
        }),
    }
}

fn search(name: Name) -> Result<PathBuf, Vec<String>> {
    let (mut tried, folders) = (Vec::new(), folders());
    let places = name.files().iter().flat_map(|file| folders.iter().map(move |folder| folder.join(file)));
    let by_name = name.files().iter().map(PathBuf::from);
    for path in places.filter(|path| path.exists()).chain(by_name) {
        match load(&path) {
            Ok(()) => return Ok(path),
            Err(why) => tried.push(why),
        }
    }
    Err(tried)
}

/// Loads a library with global symbols and never unloads it: cuDNN and the bindings find the others by name.
#[allow(unsafe_code, reason = "loading a shared library runs its constructors; these are NVIDIA's own")]
fn load(path: &Path) -> Result<(), String> {
    // SAFETY: loading a library runs its constructors. These are NVIDIA's own libraries, from folders that the user named or the
    // system has.
    #[cfg(unix)]
    let library = unsafe {
        use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
        Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL)
    };
    // SAFETY: as above. Elsewhere libraries find each other without global symbols.
    #[cfg(not(unix))]
    let library = unsafe { libloading::Library::new(path) };
    library.map(std::mem::forget).map_err(|why| why.to_string())
}

/// The folders to search.
fn folders() -> Vec<PathBuf> {
    let of = |name: &str| std::env::var_os(name).unwrap_or_default();
    // Next to the Python interpreters: of the environment, then of the PATH.
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(|name| PathBuf::from(of(name)));
    candidates(&of(VARIABLE), &environments, &of("PATH"))
}

/// The folders to search for given values of the variables.
fn candidates(named: &OsStr, environments: &[PathBuf], path: &OsStr) -> Vec<PathBuf> {
    let named = std::env::split_paths(named);
    let mut folders: Vec<PathBuf> = named.filter(|folder| !folder.as_os_str().is_empty()).collect();
    let programs: Vec<PathBuf> =
        std::env::split_paths(path).filter(|folder| folder.join("python3").exists()).collect();
    let prefixes =
        environments.iter().map(PathBuf::as_path).chain(programs.iter().filter_map(|folder| folder.parent()));
    for prefix in prefixes.filter(|prefix| prefix.is_absolute()) {
        for library in ["lib", "lib64", "local/lib"] {
            for python in subfolders(&prefix.join(library)).into_iter().filter(|path| is_python(path)) {
                for packages in ["site-packages", "dist-packages"] {
                    let wheels = subfolders(&python.join(packages).join("nvidia"));
                    folders.extend(wheels.into_iter().map(|wheel| wheel.join("lib")));
                }
            }
        }
    }
    folders.extend(
        ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib", "/usr/local/nvidia/lib64"]
            .map(PathBuf::from),
    );
    folders
}

fn is_python(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A relative entry of the PATH depends on the working folder: no library is loaded from there.
    #[test]
    fn a_relative_path_is_not_searched() {
        let place = std::env::temp_dir().join(format!("grawa-library-{}", std::process::id()));
        let wheel = place.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&wheel).unwrap();
        std::fs::create_dir_all(place.join("bin")).unwrap();
        std::fs::write(place.join("bin/python3"), "").unwrap();
        let here = std::env::current_dir().unwrap();
        let up: PathBuf = here.components().skip(1).map(|_| "..").collect();
        let relative = up.join(place.strip_prefix("/").unwrap());
        assert!(relative.is_relative() && relative.join("bin/python3").exists());
        let found = |environment: &Path, path: &Path| {
            candidates("".as_ref(), &[environment.into()], path.join("bin").as_os_str())
                .iter()
                .filter(|folder| folder.ends_with("nvidia/cu13/lib"))
                .count()
        };
        let nowhere = Path::new("");
        let counts = [
            found(nowhere, &place),
            found(&place, nowhere),
            found(nowhere, &relative),
            found(&relative, nowhere),
        ];
        // A folder named explicitly may be relative.
        let named = candidates("here/lib".as_ref(), &[], "".as_ref());
        std::fs::remove_dir_all(&place).unwrap();
        assert_eq!(counts, [1, 1, 0, 0]);
        assert_eq!(named[0], Path::new("here/lib"));
    }

    #[test]
    fn every_library_is_found_or_has_a_remedy() {
        for name in Name::ALL {
            match open(name) {
                Ok(path) => assert!(path.file_name().is_some()),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&name.to_string()) && text.contains(name.remedy()), "{text}");
                }
            }
        }
    }
}
