// Memory that is owned, zeroed and, where it is large, mapped in huge pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace rg {

template <class T>
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr, other.size_ = 0; }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Buffer() { free(); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    size_t size() const { return size_; }

    // Makes room for `size` elements; what was there is lost if there was not enough. False: there is no memory.
    bool reserve(size_t size) {
        if (size <= size_) return true;
        free();
        return allocate(size + size / 4);
    }

  private:
    bool allocate(size_t size) {
        if (size == 0) return true;
        void* memory = mmap(nullptr, size * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return false;
#if defined(MADV_HUGEPAGE)
        if (size * sizeof(T) >= kLarge) madvise(memory, size * sizeof(T), MADV_HUGEPAGE);
#endif
        data_ = static_cast<T*>(memory);
        size_ = size;
        return true;
    }

    void free() {
        if (data_) munmap(data_, size_ * sizeof(T));
        data_ = nullptr;
        size_ = 0;
    }

    static constexpr size_t kLarge = 4u << 20;

    T* data_ = nullptr;
    size_t size_ = 0;
};

// Pieces of memory that lie side by side in large blocks, so that all of it is in huge pages: a decode step reads every
// weight once, and the processor reads ahead within a page only. A block is freed with the last of its pieces, so what
// goes at another time than the rest comes from an arena of its own.
class Arena {
  public:
    using Piece = std::shared_ptr<uint32_t>;

    // The one for what stays as long as a model.
    static Arena& of_models() {
        static Arena arena(16u << 20, nullptr);  // words: 64 MiB
        return arena;
    }

    // Blocks that nobody uses, and that somebody will before long: to have pages from the system takes longer than to
    // fill them.
    class Spare {
      public:
        explicit Spare(size_t most) : most_(most) {}

        // An empty buffer if there is none.
        Buffer<uint32_t> take() {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (blocks_.empty()) return {};
            Buffer<uint32_t> block = std::move(blocks_.back());
            blocks_.pop_back();
            return block;
        }

        // `used` words of it are not zero any more.
        void keep(Buffer<uint32_t> block, size_t used) {
            std::memset(block.data(), 0, used * sizeof(uint32_t));
            const std::lock_guard<std::mutex> lock(mutex_);
            if (blocks_.size() < most_) blocks_.push_back(std::move(block));
        }

      private:
        const size_t most_;
        std::mutex mutex_;
        std::vector<Buffer<uint32_t>> blocks_;  // all zeros
    };

    // Blocks of `block_words`, taken from and given to `spare` where there is one; it must live longer.
    Arena(size_t block_words, Spare* spare) : block_words_(block_words), spare_(spare) {}

    // Null: out of memory.
    Piece take(size_t words) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const size_t needed = (words + kAlignment - 1) / kAlignment * kAlignment;
        std::shared_ptr<Block> block = block_.lock();
        if (!block || block->memory.size() - block->used < needed) {
            block = std::make_shared<Block>(needed > block_words_ ? nullptr : spare_);
            if (!block->memory.reserve(needed > block_words_ ? needed : block_words_)) return nullptr;
            block_ = block;
        }
        uint32_t* place = block->memory.data() + block->used;
        block->used += needed;
        return Piece(std::move(block), place);
    }

  private:
    struct Block {
        explicit Block(Spare* spare) : spare(spare) {
            if (spare) memory = spare->take();
        }
        ~Block() {
            if (spare && memory.size()) spare->keep(std::move(memory), used);
        }

        Spare* const spare;
        Buffer<uint32_t> memory;
        size_t used = 0;
    };

    static constexpr size_t kAlignment = 16;  // words of a cache line

    const size_t block_words_;
    Spare* const spare_;
    std::mutex mutex_;
    std::weak_ptr<Block> block_;  // the one that is being filled
};

}  // namespace rg
