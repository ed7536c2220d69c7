//! What every transport must promise, checked by the ranks of an MPI job: run it under `mpirun`, see `.ci/mpi`.

#![allow(clippy::unwrap_used)]

use grawa_comm::mpi::Job;
use grawa_comm::{Collective, Error, conformance};
use grawa_core::{Layout, Memory, Method, Report, mix, plan};

fn main() {
    let job = Job::start().unwrap();
    let ranks = job.size();
    // A rank that panics ends the job, as the destructor of `Job` sees to.
    let mut all = job.group(0..ranks, vec![0.0; conformance::STATE]).unwrap().unwrap();
    assert_eq!(conformance::check(&mut all), Ok(()));
    parts_of_the_job(&job);
    longer_than_a_stripe(&job);
    misuse_is_told(&job);
    counting(&job);
    from_two_threads(&job);
    let mut dealt = all.scatter(&mut |worker| Ok(vec![worker as u8; 3 + worker as usize])).unwrap();
    assert_eq!(dealt.len(), 3 + job.rank() as usize);
    dealt.dedup();
    assert_eq!(dealt, [job.rank() as u8]);
    assert!((1..=ranks).contains(&job.on_this_machine().unwrap()));
    all.barrier().unwrap();
    // MPI goes on until the last member is gone.
    let (rank, counters) = (job.rank(), job.counters::<1>().unwrap());
    drop(job);
    all.barrier().unwrap();
    counters.take(0).unwrap();
    all.barrier().unwrap();
    drop(all);
    drop(counters);
    if rank == 0 {
        println!("conformance holds on {ranks} ranks");
    }
}

/// Groups inside the job: the first rank, and the others.
fn parts_of_the_job(job: &Job) {
    let (first, others) = (0..1, 1..job.size());
    for group in [first, others] {
        let is_in = group.contains(&job.rank());
        let member = job.group(group.clone(), vec![0.0; conformance::STATE]).unwrap();
        assert_eq!(member.is_some(), is_in);
        if let Some(mut member) = member {
            assert_eq!(member.members(), group.collect::<Vec<u32>>());
            assert_eq!(conformance::check(&mut member), Ok(()));
        }
    }
}

/// A vector that moves in several stripes, with weights by span, has the bits of the plain mix.
fn longer_than_a_stripe(job: &Job) {
    let ranks = job.size();
    let length = ranks as usize * (1 << 18) * 2 + 12_345;
    let layout = Layout::new([("a", vec![length / 3]), ("b", vec![length - length / 3])]).unwrap();
    let method: Method = "lgrawa:pull=0.3".parse().unwrap();
    let report =
        |worker: u32| Report { worker, scores: vec![1.0 + f64::from(worker), 2.0], finite: true, steps: 4 };
    let reports: Vec<Report> = (0..ranks).map(report).collect();
    let plan = plan(&method, &layout, &Memory::default(), &reports).unwrap();
    let vector = |worker: u32| -> Vec<f32> {
        (0..length).map(|at| (at % 1009) as f32 * 1e-3 - worker as f32).collect()
    };
    let mut mine = vector(job.rank());
    let mut member = job.group(0..ranks, vec![0.0; length]).unwrap().unwrap();
    member.mix_and_pull(&plan, &layout, &mut mine).unwrap();
    let mut vectors: Vec<Vec<f32>> = (0..ranks).map(vector).collect();
    let mut centre = vec![0.0; length];
    let mut slices: Vec<&mut [f32]> = vectors.iter_mut().map(Vec::as_mut_slice).collect();
    mix(&plan, &layout, &mut slices, &mut centre).unwrap();
    assert!(mine == vectors[job.rank() as usize] && **member.centre() == centre);
}

/// Members that call different things, or bring different plans, are told so, and nothing is changed.
fn misuse_is_told(job: &Job) {
    if job.size() == 1 {
        return;
    }
    let mut member = job.group(0..job.size(), vec![0.0]).unwrap().unwrap();
    let told = match job.rank() {
        0 => member.hand_in(Vec::new()).map(|_| ()),
        _ => member.gather(&[]).map(|_| ()),
    };
    assert!(
        matches!(told, Err(Error::OutOfStep { calls }) if calls[0].1 == "hand in" && calls[1].1 == "gather")
    );
    let (layout, method): (Layout, Method) = (Layout::flat(1), "grawa".parse().unwrap());
    let score = 1.0 + f64::from(job.rank().min(1));
    let scores = method.scores(1);
    let report = |worker: u32| Report {
        worker,
        scores: vec![if worker == 0 { score } else { 1.0 }; scores],
        finite: true,
        steps: 1,
    };
    let reports: Vec<Report> = (0..job.size()).map(report).collect();
    let plan = plan(&method, &layout, &Memory::default(), &reports).unwrap();
    let mut mine = [7.0];
    let told = member.mix_and_pull(&plan, &layout, &mut mine);
    assert!(matches!(told, Err(Error::PlansDiffer { first: 0, other: 1 })), "{told:?}");
    assert_eq!(mine, [7.0]);
}

/// Every number of a counter goes to one rank alone; cleared, it begins again.
fn counting(job: &Job) {
    let counters = job.counters::<2>().unwrap();
    let mut talk = job.group(0..job.size(), Vec::new()).unwrap().unwrap();
    for _ in 0..2 {
        let mine: Vec<u8> = (0..20).map(|_| counters.take(1).unwrap() as u8).collect();
        let mut all: Vec<u8> =
            talk.gather(&mine).unwrap().messages.into_iter().flat_map(|(_, numbers)| numbers).collect();
        all.sort_unstable();
        assert_eq!(all, (0..20 * job.size() as u8).collect::<Vec<u8>>());
        if job.rank() == 0 {
            counters.clear(1).unwrap();
        }
        talk.barrier().unwrap();
    }
}

/// Two groups of this rank alone, each in a thread of its own: their calls take turns.
fn from_two_threads(job: &Job) {
    let mut alone = Vec::new();
    for _ in 0..2 {
        for rank in 0..job.size() {
            alone.extend(job.group(rank..rank + 1, vec![0.0; conformance::STATE]).unwrap());
        }
    }
    assert_eq!(alone.len(), 2);
    std::thread::scope(|scope| {
        for mut member in alone {
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(conformance::check(&mut member), Ok(()));
                }
            });
        }
    });
}
