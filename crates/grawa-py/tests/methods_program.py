"""A worker that trains the same small model over either transport: `grawa`, or `torch` with a file to meet at, a rank and a size."""

import sys

import numpy

import grawa

TENSORS = [("weight", [5, 3]), ("bias", [7])]


def loop(session, x, fails):
    """Noisy quadratic wells: each worker has its own minimum and its own noise. One of them meets a NaN."""
    scale = numpy.linspace(0.2, 1.5, 22, dtype=numpy.float32)
    evaluated = []
    while (due := session.due) != "end":
        worker, steps = session.worker, session.progress.steps
        noise = numpy.random.default_rng([worker, steps]).normal(size=22).astype(numpy.float32)
        gradient = scale * (x - worker) + noise
        norms = [float(numpy.linalg.norm(gradient[:15])), float(numpy.linalg.norm(gradient[15:]))]
        if due == "step":
            x -= numpy.float32(0.1) * gradient
            if session.prox > 0:
                centre = numpy.asarray(session.centre())
                x += numpy.float32(session.prox) * (centre - x)
            if fails and worker == 1 and steps == 9:
                x[3] = numpy.nan
            session.step(float(numpy.linalg.norm(x)), norms if session.wants_norms else (), 0.1)
        elif due == "round":
            session.round(as_given(session, x), norms if session.score_seed is not None else ())
        else:
            evaluated.append(numpy.array(session.evaluated_model(as_given(session, x))))
    session.finish()
    return numpy.stack([x.copy(), *evaluated])


def as_given(session, x):
    if type(session) is grawa.Session:
        return x
    import torch

    return torch.from_numpy(x)


def main():
    out, methods, comm, *where = sys.argv[1:]
    if comm == "torch":
        import torch
        import torch.distributed as dist
        from grawa.process_group import ProcessGroupSession

        file, rank, size = where
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size))
    for number, method in enumerate(methods.split(";")):
        x = numpy.full(22, 3.0, dtype=numpy.float32)
        fails = method.endswith("!")
        settings = {"method": method.rstrip("!"), "budget": "20step", "evaluate": "8step", "batch": 1, "examples": 1, "seed": 5, "name": "wells"}
        if comm == "torch":
            session = ProcessGroupSession(torch.from_numpy(x), tensors=TENSORS, pace="even", **settings)
        else:
            session = grawa.Session(x, tensors=TENSORS, **settings)
        worker = session.worker
        numpy.save(f"{out}/{comm}-{number}-{worker}.npy", loop(session, x, fails))
    if comm == "torch":
        dist.destroy_process_group()


main()
