// Threads that go through the phases of a computation together.
#pragma once

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>

#include "vector.h"

namespace rg {

class Team;

// One thread's part in a team's work.
class Member {
  public:
    Member(Team& team, int number, int size) : team_(team), number_(number), size_(size) {}

    int number() const { return number_; }
    int size() const { return size_; }

    // Runs task(0) .. task(count - 1), each once, on whichever member is free. Returns when all are done.
    template <class Task>
    void share(long count, const Task& task);

  private:
    Team& team_;
    int number_;
    int size_;
};

// Runs work(member) on `size` threads of the process's OpenMP pool, which torch uses as well: the pool belongs to the
// calling thread, so calls should always come from the same one.
class Team {
  public:
    template <class Work>
    static void run(int size, const Work& work) {
        Team team;
#pragma omp parallel num_threads(size)
        {
            Member member(team, omp_get_thread_num(), omp_get_num_threads());
            work(member);
        }
    }

  private:
    friend class Member;

    void wait_for_all(int size) {
        const int round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            arrived_.store(0, std::memory_order_relaxed);
            next_task_.store(0, std::memory_order_relaxed);
            round_.store(round + 1);
            if (asleep_.load() > 0) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
            return;
        }
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            if (spins < kSpins) continue;
            // Whoever is missing may be waiting for this very core. Asleep, this thread wakes up on one that is idle;
            // yielding to each other, two threads stay on one core, because to the system they are too warm to move.
            asleep_.fetch_add(1);
            futex(FUTEX_WAIT_PRIVATE, round);
            asleep_.fetch_sub(1);
        }
    }

    void futex(int operation, int value) { syscall(SYS_futex, &round_, operation, value, nullptr, nullptr, 0); }

    static constexpr int kSpins = 2000;  // some tens of microseconds

    alignas(64) std::atomic<long> next_task_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
    std::atomic<int> asleep_{0};
};

template <class Task>
void Member::share(long count, const Task& task) {
    if (size_ == 1) {
        for (long i = 0; i < count; i++) task(i);
        return;
    }
    for (long i; (i = team_.next_task_.fetch_add(1, std::memory_order_relaxed)) < count;) task(i);
    team_.wait_for_all(size_);
}

}  // namespace rg
