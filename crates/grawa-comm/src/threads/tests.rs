use super::*;
use crate::{Lost, Why, conformance};
use grawa_core::{Memory, Method, Report, plan};
use std::sync::mpsc::channel;

const LONG: Duration = Duration::from_secs(600);
/// Long enough that a busy machine makes nobody late.
const SHORT: Duration = Duration::from_millis(500);

/// Runs a function on every member, each in a thread of its own.
fn each<T: Send>(members: Vec<Member>, work: impl Fn(Member) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(move || work(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn threads_conform() {
    for workers in [1, 2, 3, 8, 33] {
        let members = group(0..workers, vec![0.0; conformance::STATE], LONG);
        for found in each(members, |mut member| conformance::check(&mut member)) {
            assert_eq!(found, Ok(()), "{workers} workers");
        }
    }
}

#[test]
fn groups_may_have_any_numbers() {
    let members = group([9, 4, 70], vec![0.0; conformance::STATE], LONG);
    for found in each(members, |mut member| conformance::check(&mut member)) {
        assert_eq!(found, Ok(()));
    }
}

#[test]
fn who_leaves_is_named() {
    for workers in [2, 3, 8] {
        let members = group(0..workers, vec![0.0; conformance::STATE], LONG);
        for found in each(members, |member| conformance::check_loss(member, drop)) {
            assert_eq!(found, Ok(()));
        }
    }
}

#[test]
fn who_breaks_down_is_named() {
    let members = group(0..3, Vec::new(), LONG);
    let found = std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .into_iter()
            .map(|mut member| {
                scope.spawn(move || {
                    assert_ne!(member.id(), 1, "on purpose");
                    member.barrier()
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    assert_eq!(found.len(), 2);
    for outcome in found {
        let outcome = outcome.unwrap();
        assert_eq!(
            (outcome.members, outcome.lost),
            (vec![0, 2], vec![Lost { worker: 1, why: Why::Panicked }])
        );
    }
}

fn mean(members: &[u32], layout: &Layout) -> Plan {
    let method: Method = "mean:pull=1".parse().unwrap();
    let reports: Vec<Report> =
        members.iter().map(|&worker| Report { worker, scores: vec![], finite: true, steps: 1 }).collect();
    plan(&method, layout, &Memory::default(), &reports).unwrap()
}

/// Worker 1 stalls while it looks at the centre. The others go on; it keeps the centre it had, and learns of it.
#[test]
fn who_stalls_is_given_up_and_told() {
    let layout = Layout::flat(4);
    let members = group(0..3, vec![7.0; 4], SHORT);
    let (go_on, wait) = channel::<()>();
    let (wait, go_on) = (std::sync::Mutex::new(wait), std::sync::Mutex::new(Some(go_on)));
    let found = each(members, |mut member| {
        if member.id() == 1 {
            let seen = Arc::clone(member.centre());
            // Until the others have mixed.
            let _ = wait.lock().unwrap().recv();
            assert_eq!(*seen, [7.0; 4]);
            return member.barrier().map(|outcome| outcome.members);
        }
        let outcome = member.barrier()?;
        assert_eq!(outcome.lost, [Lost { worker: 1, why: Why::Stalled { after: SHORT } }]);
        assert!(outcome.lost[0].to_string().contains("was silent for"));
        let mine = vec![member.id() as f32; 4];
        member.mix(&mean(&[0, 2], &layout), &layout, &mine)?;
        assert_eq!(**member.centre(), [1.0; 4]);
        member.barrier()?;
        go_on.lock().unwrap().take();
        Ok(outcome.members)
    });
    assert_eq!(found[0], Ok(vec![0, 2]));
    assert_eq!(found[1], Err(Error::Expelled { worker: 1, after: SHORT }));
}

/// Worker 1 is said to have left while it looks at the centre, or while it waits for a round: it keeps the centre it had, and
/// nobody else waits for it.
#[test]
fn who_is_forgotten_keeps_its_centre() {
    for (why, waits) in [(Why::Left, false), (Why::Disconnected, false), (Why::Left, true)] {
        let layout = Layout::flat(4);
        let members = group(0..3, vec![7.0; 4], LONG);
        let (go_on, wait) = channel::<()>();
        let (wait, go_on) = (std::sync::Mutex::new(wait), std::sync::Mutex::new(Some(go_on)));
        let is_sitting = std::sync::Barrier::new(2);
        let found = each(members, |mut member| {
            let all = mean(&[0, 1, 2], &layout);
            if member.id() == 1 {
                if waits {
                    is_sitting.wait();
                    let result = member.mix(&all, &layout, &[5.0; 4]);
                    assert_eq!(result, Err(Error::Expelled { worker: 1, after: Duration::ZERO }));
                }
                let seen = Arc::clone(member.centre());
                // Until the others have mixed.
                let _ = wait.lock().unwrap().recv_timeout(Duration::from_secs(60));
                assert_eq!(*seen, [7.0; 4], "{why:?}, {waits}");
                return member.barrier().map(|_| ());
            }
            if member.id() == 0 {
                if waits {
                    is_sitting.wait();
                    // Long enough that it sits down as a rule; the test holds either way.
                    std::thread::sleep(Duration::from_millis(50));
                }
                member.forget(&Lost { worker: 1, why: why.clone() });
            }
            let mine = vec![member.id() as f32; 4];
            // The round that was planned with it is not held.
            let lost = vec![Lost { worker: 1, why: why.clone() }];
            assert_eq!(member.mix(&all, &layout, &mine), Err(Error::Shrunk { lost }));
            for _ in 0..3 {
                member.mix(&mean(&[0, 2], &layout), &layout, &mine)?;
            }
            assert_eq!(**member.centre(), [1.0; 4]);
            member.barrier()?;
            go_on.lock().unwrap().take();
            Ok(())
        });
        assert_eq!(found, [Ok(()), Err(Error::Expelled { worker: 1, after: Duration::ZERO }), Ok(())]);
    }
}

/// One that was given up calls the others lost, again and again, while they are in the middle of rounds: it has no say.
#[test]
fn who_was_given_up_has_no_say() {
    // Long enough that others call in the middle of a round; Miri is slow, and lets any thread go on at any time.
    const LENGTH: usize = if cfg!(miri) { 100 } else { 100_000 };
    const ROUNDS: usize = if cfg!(miri) { 3 } else { 100 };
    let layout = Layout::flat(LENGTH);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let is_lost = std::sync::Barrier::new(3);
    let found = each(group(0..3, vec![0.0; LENGTH], LONG), |mut member| {
        if member.id() == 0 {
            member.forget(&Lost { worker: 1, why: Why::Unreachable });
        }
        is_lost.wait();
        if member.id() == 1 {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                [0, 2].into_iter().for_each(|worker| member.forget(&Lost { worker, why: Why::Left }));
                std::thread::yield_now();
            }
            return Ok(());
        }
        let mine = vec![member.id() as f32; LENGTH];
        let rounds =
            (0..ROUNDS).try_for_each(|_| member.mix(&mean(&[0, 2], &layout), &layout, &mine).map(|_| ()));
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(rounds.is_err() || **member.centre() == vec![1.0; LENGTH]);
        rounds
    });
    assert_eq!(found, [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn slow_is_not_dead() {
    let found = each(group(0..2, Vec::new(), SHORT), |mut member| {
        if member.id() == 0 {
            for _ in 0..15 {
                std::thread::sleep(SHORT / 10);
                member.heartbeat()();
            }
        }
        member.barrier().map(|outcome| outcome.members)
    });
    assert_eq!(found, [Ok(vec![0, 1]), Ok(vec![0, 1])]);
}

/// Nobody is late for a meeting that has not begun, however long ago the last one was.
#[test]
fn long_work_between_meetings_is_not_a_stall() {
    let found = each(group(0..2, Vec::new(), SHORT), |mut member| {
        member.barrier()?;
        // Both work longer than the deadline; one is a little slower than the other.
        std::thread::sleep(2 * SHORT + member.id() * SHORT / 5);
        member.barrier().map(|outcome| outcome.members)
    });
    assert_eq!(found, [Ok(vec![0, 1]), Ok(vec![0, 1])]);
}

#[test]
fn members_out_of_step_are_told() {
    let found = each(group(0..2, Vec::new(), LONG), |mut member| match member.id() {
        0 => member.mix(&mean(&[0, 1], &Layout::flat(0)), &Layout::flat(0), &[]).map(|_| ()),
        _ => member.gather(&[1]).map(|_| ()),
    });
    for error in found {
        let text = error.unwrap_err().to_string();
        assert!(text.contains("worker 0 calls mix, worker 1 calls gather"), "{text}");
    }
}

#[test]
fn different_plans_are_refused() {
    let layout = Layout::flat(4);
    let found = each(group(0..2, vec![0.0; 4], LONG), |mut member| {
        let mut plan = mean(&[0, 1], &layout);
        plan.pull -= 0.5 * member.id() as f32;
        let result = member.mix(&plan, &layout, &[1.0; 4]);
        assert_eq!(**member.centre(), [0.0; 4]);
        result
    });
    assert_eq!(found[0], Err(Error::PlansDiffer { first: 0, other: 1 }));
    assert_eq!(found[1], found[0]);
}

#[test]
fn lengths_must_fit() {
    let layout = Layout::flat(4);
    let found = each(group(0..2, vec![0.0; 4], LONG), |mut member| {
        let mine = vec![1.0; 4 - member.id() as usize];
        member.mix(&mean(&[0, 1], &layout), &layout, &mine)
    });
    assert!(found.iter().all(|found| matches!(found, Err(Error::Core(_)))), "{found:?}");
}
