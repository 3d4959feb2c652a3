#include "cpu/tightly_coupled_memory.hpp"

#include <cerrno>
#include <csignal>
#include <dlfcn.h>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

namespace nybble {
namespace {

// What libspine_tcm fills in.
struct LayoutInfo {
    size_t block_bytes;
    size_t blocks;
    int is_fake;
};
struct BlockInfo {
    int id;
    void* address;
    size_t bytes;
    uint64_t physical_address;
    uint64_t cpus;
    int owner;  // a thread
    int is_taken;
};

constexpr size_t kPatience = 10'000;  // microseconds

// Blocks that this process has. The library knows threads and counts references: it would give one block twice.
std::mutex guard;
std::set<std::pair<std::string, size_t>> ours;

bool is_gone(int thread) { return thread > 0 && kill(thread, 0) != 0 && errno == ESRCH; }

[[noreturn]] void refuse(const std::string& why) { throw std::runtime_error(why); }

}  // namespace

struct TightlyCoupledMemory::Functions {
    std::string name;
    void* library;
    int (*is_available)();
    int (*layout_info)(LayoutInfo*);
    int (*block_info)(int, BlockInfo*);
    void* (*try_wait)(int, size_t);
    int (*release)(int);
    int (*force_release)(int);

    explicit Functions(const std::string& path) : name(path), library(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (library == nullptr) refuse(dlerror());
        find(is_available, "is_available");
        find(layout_info, "layout_info");
        find(block_info, "mem_info");
        find(try_wait, "mem_try_wait");
        find(release, "mem_release");
        find(force_release, "mem_force_release");
    }
    ~Functions() { dlclose(library); }
    Functions(const Functions&) = delete;

    template <typename Function>
    void find(Function*& function, const std::string& symbol) {
        function = reinterpret_cast<Function*>(dlsym(library, ("spine_tcm_runtime_" + symbol).c_str()));
        if (function != nullptr) return;
        dlclose(library);
        refuse(name + " has no spine_tcm_runtime_" + symbol);
    }
};

TightlyCoupledMemory::TightlyCoupledMemory(const std::string& library) : call_(std::make_unique<Functions>(library)) {
    if (call_->is_available() == 0) refuse(library + " finds none");
    LayoutInfo layout{};
    if (call_->layout_info(&layout) != 0) refuse(library + " does not say how large it is");
    if (layout.is_fake != 0) refuse(library + " has ordinary memory in its place");
    blocks_ = layout.blocks;
    block_bytes_ = layout.block_bytes;
}

TightlyCoupledMemory::~TightlyCoupledMemory() = default;

uint8_t* TightlyCoupledMemory::request(size_t block) {
    return static_cast<uint8_t*>(call_->try_wait(static_cast<int>(block), kPatience));
}

uint8_t* TightlyCoupledMemory::acquire(size_t block) {
    const std::string name = "block " + std::to_string(block);
    if (block >= blocks_) refuse("there is no " + name);
    const std::lock_guard lock(guard);
    if (ours.contains({call_->name, block})) refuse("this process uses " + name + " already");
    uint8_t* memory = request(block);
    if (memory == nullptr) {
        BlockInfo info{};
        if (call_->block_info(static_cast<int>(block), &info) != 0) refuse("nothing is known of " + name);
        if (!is_gone(info.owner)) refuse(name + " is taken by thread " + std::to_string(info.owner));
        if (call_->force_release(static_cast<int>(block)) == 0) memory = request(block);
        if (memory == nullptr) {
            refuse(name + " was left taken by thread " + std::to_string(info.owner) + " and cannot be taken back");
        }
    }
    ours.insert({call_->name, block});
    return memory;
}

void TightlyCoupledMemory::release(size_t block) {
    const std::lock_guard lock(guard);
    call_->release(static_cast<int>(block));
    ours.erase({call_->name, block});
}

}  // namespace nybble
