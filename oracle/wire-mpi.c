// All-reduce of a vector between processes by MPI, the seconds of every round as the slowest process has them.
//
// usage: mpicc -O2 -o wire-mpi wire-mpi.c
//        mpirun --mca pml ob1 --mca btl tcp,self -n 4 wire-mpi [FLOATS [ROUNDS]]

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int arguments, char **words) {
    MPI_Init(&arguments, &words);
    int rank, workers;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    int floats = arguments > 1 ? atoi(words[1]) : 36536884;
    int rounds = arguments > 2 ? atoi(words[2]) : 5;
    float *vector = floats > 0 ? malloc(sizeof(float) * (size_t)floats) : NULL;
    if (!vector || rounds < 1) {
        fprintf(stderr, "usage: wire-mpi [FLOATS [ROUNDS]], both above zero, and memory for the floats\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int i = 0; i < floats; i++) vector[i] = (float)(i % 1000) * 1e-3f + (float)rank;
    for (int round = 0; round <= rounds; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, vector, floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < floats; i++) vector[i] /= (float)workers;
        double seconds = MPI_Wtime() - start, slowest;
        MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        // The first round pays for connections and pages.
        if (rank == 0 && round > 0) {
            printf("%.4f\n", slowest);
            fflush(stdout);
        }
    }
    // Every process must hold the mean it started around, or the seconds measure something else.
    for (int i = 0; i < floats; i++) {
        float mean = (float)(i % 1000) * 1e-3f + (float)(workers - 1) / 2;
        float off = vector[i] - mean;
        if (!(off < 1e-3f && off > -1e-3f)) {
            fprintf(stderr, "process %d: element %d is %g where the mean is %g\n", rank, i, vector[i], mean);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    free(vector);
    MPI_Finalize();
    return 0;
}
