//! The limit on open files, and how many of them connections may use.
//!
//! A socket is an open file. A process that has no more files can neither connect, read data nor write a checkpoint. So
//! connections that others open may use three quarters of the limit.

/// Enough for any group.
const ENOUGH: u64 = 1 << 16;

/// Raises the limit on open files of this process as far as the system allows. Returns the limit.
pub fn raise_file_limit() -> u64 {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
        if current.is_some_and(|current| current < wanted) {
            // If it is refused, the old limit stays.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
        }
    }
    file_limit()
}

fn file_limit() -> u64 {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(ENOUGH);
    #[cfg(not(unix))]
    return 1024;
}

/// What a coordinator has open besides connections: its journal, the record of the run, listeners, standard input and output.
const OWN: u64 = 20;

/// Why a coordinator of so many workers cannot work with this limit on open files, if it cannot.
pub(crate) fn too_few(files: u64, workers: u32) -> Option<String> {
    let needed = u64::from(workers) * 2 + OWN;
    (files < needed).then(|| {
        format!(
            "this process may have {files} open files, and a coordinator of {workers} workers needs {needed}: raise the limit (ulimit -n {needed})"
        )
    })
}

/// The same for this process.
pub(crate) fn objection(workers: u32) -> Option<String> {
    too_few(file_limit(), workers)
}

/// How many connections a listener keeps open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Connections that are not authenticated.
    pub(crate) pending: usize,
    /// Of these, from one address. All workers of a machine share an address.
    pub(crate) per_address: usize,
    /// Connections that are authenticated.
    pub(crate) open: usize,
}

impl Limits {
    /// What fits into the limit of this process.
    pub(crate) fn here() -> Self {
        Self::of(file_limit())
    }

    fn of(files: u64) -> Self {
        let files = usize::try_from(files).unwrap_or(usize::MAX);
        let pending = (files / 4).clamp(4, 1024);
        Limits { pending, per_address: pending - pending / 8, open: (files / 2).clamp(4, 4096) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of any limit stays for everything else. At the usual limit, 200 workers of one machine fit.
    #[test]
    fn connections_leave_files_for_everything_else() {
        for files in [64, 256, 1024, 4096, 1 << 20, u64::MAX] {
            let Limits { pending, per_address, open } = Limits::of(files);
            assert!((pending + open) as u64 <= files / 4 * 3, "{files}");
            assert!(0 < per_address && per_address < pending, "{files}");
        }
        let usual = Limits::of(1024);
        assert!(usual.per_address >= 200 && usual.open >= 200, "{usual:?}");
    }

    #[test]
    fn a_coordinator_says_that_it_has_too_few_files() {
        assert!(
            too_few(12, 2).is_some_and(|why| why.contains("12 open files") && why.contains("ulimit -n 24"))
        );
        assert_eq!((too_few(24, 2), too_few(1024, 500)), (None, None));
        assert_eq!(too_few(u64::MAX, u32::MAX), None);
    }

    #[cfg(unix)]
    #[test]
    fn the_limit_is_raised_as_far_as_is_allowed() {
        use rustix::process::{Resource, getrlimit};
        let most = getrlimit(Resource::Nofile).maximum.unwrap_or(ENOUGH);
        let found = raise_file_limit();
        assert!(found >= most.min(ENOUGH) && found == file_limit(), "{found} of {most}");
    }
}
