// Threads that go through the phases of a computation together.
//
// A phase has ended when its tasks are done, not when everybody has come: a thread whose core somebody else has holds up
// nobody, unless it holds a task. Late, it walks through the phases that have ended and joins the one under way.
#pragma once

#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <memory>

#include "vector.h"

namespace rg {

class Team;

// One thread's part in a team's work. All members make the same calls of `share`, in the same order.
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
    int phase_ = 0;
};

// Runs work(member) on `size` threads of the process's OpenMP pool, which torch uses as well: the pool belongs to the
// calling thread, so calls should always come from the same one.
class Team {
  public:
    // `phases`: the most calls of `share` that a member makes.
    template <class Work>
    static void run(int size, int phases, const Work& work) {
        Team team(size > 1 ? phases : 0);
#pragma omp parallel num_threads(size)
        {
            Member member(team, omp_get_thread_num(), omp_get_num_threads());
            work(member);
        }
    }

  private:
    friend class Member;

    struct alignas(64) Phase {
        std::atomic<int> taken{0};
        std::atomic<int> done{0};
    };

    explicit Team(int phases) : phases_(new Phase[phases]) {}

    void finish(Phase& phase, int count) {
        if (phase.done.fetch_add(1) + 1 == count && asleep_.load() > 0) futex(phase, FUTEX_WAKE_PRIVATE, INT_MAX);
    }

    void wait(Phase& phase, int count) {
        for (int spins = 0;; spins++) {
            const int done = phase.done.load(std::memory_order_acquire);
            if (done == count) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            if (spins < kSpins) continue;
            // Whoever is at it may be waiting for this very core. Asleep, this thread wakes up on one that is idle;
            // yielding to each other, two threads stay on one core, because to the system they are too warm to move.
            asleep_.fetch_add(1);
            futex(phase, FUTEX_WAIT_PRIVATE, done);
            asleep_.fetch_sub(1);
        }
    }

    static void futex(Phase& phase, int operation, int value) {
        syscall(SYS_futex, &phase.done, operation, value, nullptr, nullptr, 0);
    }

    static constexpr int kSpins = 2000;  // some tens of microseconds

    std::unique_ptr<Phase[]> phases_;
    std::atomic<int> asleep_{0};
};

template <class Task>
void Member::share(long count, const Task& task) {
    if (size_ == 1) {
        for (long i = 0; i < count; i++) task(i);
        return;
    }
    Team::Phase& phase = team_.phases_[phase_++];
    for (long i; (i = phase.taken.fetch_add(1, std::memory_order_relaxed)) < count;) {
        task(i);
        team_.finish(phase, (int)count);
    }
    if (count > 0) team_.wait(phase, (int)count);
}

}  // namespace rg
