/* The model for C++17 and later: handles that close themselves, buffers with sizes and dtypes, errors that are thrown.
 *
HOSTED  *     PREFIX::model model("NAME.modelc", 2);
BARE  *     PREFIX::model model;
 *     std::vector<float> x(...), y(...);
 *     model.run({x}, {y});                                    // of the first variant's shapes
 *     int variant = model.run_shaped({{1, 12}}, {x}, {y});    // of the variant that takes this shape
 *     modelc::shape shape = model.output_shape(0, variant);
 *
 * A buffer is any contiguous range: std::vector, std::array, std::span, an array, or a pointer with a count. What takes
 * several takes {x, mask} or a range of them. Functions are those of modelc_api, where each is described.
 */
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "model.h"

#ifndef MODELC_MODEL_HPP
#define MODELC_MODEL_HPP

namespace modelc {

struct error : std::runtime_error {
    error(modelc_status status, const std::string &sentence) : std::runtime_error(sentence), status(status) {}
    modelc_status status;
};

using shape = std::vector<std::int64_t>;

/* The modelc_dtype of numbers; 0 where bytes may be any. */
template <class T>
constexpr std::int32_t dtype_of() {
    if constexpr (std::is_same_v<T, bool>) return MODELC_BOOL;
    else if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? MODELC_FLOAT32 : sizeof(T) == 8 ? MODELC_FLOAT64 : 0;
    else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, char>)
        return (std::is_signed_v<T> ? MODELC_INT8 : MODELC_UINT8) + (sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3);
    else return 0;
}

inline std::string name_of(std::int32_t dtype) {
    static const char *const names[] = {"bytes", "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32",
                                        "int64", "uint8", "uint16", "uint32", "uint64", "bool"};
    return dtype >= 0 && dtype <= MODELC_BOOL ? names[dtype] : "of a byte each";
}

/* Memory that a run reads (Void is const void) or writes (void). */
template <class Void>
class buffer {
    template <class Range>
    using element = std::remove_pointer_t<decltype(std::data(std::declval<Range &>()))>;

  public:
    template <class Range, class T = element<Range>,
              class = std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_base_of_v<buffer, T> &&
                                       (std::is_const_v<Void> || !std::is_const_v<T>)>>
    buffer(Range &&range) : buffer(std::data(range), std::size(range)) {}
    template <class T, class = std::enable_if_t<!std::is_void_v<T>>>
    buffer(T *data, std::size_t count) : data(data), bytes(count * sizeof(T)), dtype(dtype_of<std::remove_cv_t<T>>()) {}
    buffer(Void *data, std::size_t bytes) : data(data), bytes(bytes), dtype(0) {}

    Void *data;
    std::size_t bytes;
    std::int32_t dtype;
};

using input = buffer<const void>;
using output = buffer<void>;

/* All inputs, or all outputs: {x, mask}, or any range of what buffers are made of. */
template <class Buffer>
class buffers {
    template <class Range>
    using item = decltype(*std::begin(std::declval<Range &>()));

  public:
    buffers(std::initializer_list<Buffer> items) : items_(items) {}
    template <class Range, class = std::enable_if_t<std::is_convertible_v<item<Range>, Buffer>>>
    buffers(Range &&range) : items_(std::begin(range), std::end(range)) {}
    std::size_t size() const { return items_.size(); }
    const Buffer &operator[](std::size_t index) const { return items_[index]; }

  private:
    std::vector<Buffer> items_;
};

/* A share of a step's work: task(index), for each index below the count that came with it. */
class task {
  public:
    task(modelc_task function, void *arguments) : function_(function), arguments_(arguments) {}
    void operator()(int index) const { function_(arguments_, index); }

  private:
    modelc_task function_;
    void *arguments_;
};

/* modelc_options. Of parallel_for(count, task), no exception may leave. */
struct options {
    options(int threads = 0) : threads(threads) {}
    int threads;
    bool check = false;
    std::uint64_t seed = 0;
    std::function<void(int count, const task &)> parallel_for;
};

/* Parameters that are not in a folder: open_memory and open_fd say what is asked of them. */
struct in_memory {
    input params;
};
struct in_file {
    int fd;
    std::uint64_t offset = 0, bytes = 0;
};

class handle {
  public:
    handle(const modelc_api *api, const std::string &path, options chosen = {}) : api_(api) {
        open(std::move(chosen), [&](const modelc_options *o) { return api_->open(path.c_str(), o, &handle_); });
    }
    handle(const modelc_api *api, in_memory where, options chosen = {}) : api_(api) {
        open(std::move(chosen), [&](const modelc_options *o) {
            return api_->open_memory(where.params.data, where.params.bytes, o, &handle_);
        });
    }
    handle(const modelc_api *api, in_file where, options chosen = {}) : api_(api) {
        open(std::move(chosen), [&](const modelc_options *o) {
            return api_->open_fd(where.fd, where.offset, where.bytes, o, &handle_);
        });
    }
    /* Of a free-standing library: in the program's memory, api->memory_size() bytes aligned to 64; in memory of its own. */
    handle(const modelc_api *api, void *memory) : api_(api), handle_(api->init(memory)) {
        bool is_right = memory && reinterpret_cast<std::uintptr_t>(memory) % 64 == 0;
        if (!handle_) throw error(is_right ? MODELC_NO_CPU : MODELC_BAD_ARGUMENT, api_->last_error());
    }
    explicit handle(const modelc_api *api) : handle(api, std::make_unique<unsigned char[]>(api->memory_size() + 63)) {}
    handle(handle &&other) noexcept
        : api_(other.api_), own_(std::move(other.own_)), parallel_for_(std::move(other.parallel_for_)),
          poller_(std::move(other.poller_)), handle_(std::exchange(other.handle_, nullptr)) {}
    handle &operator=(handle &&other) noexcept {
        std::swap(api_, other.api_);
        std::swap(own_, other.own_);
        std::swap(parallel_for_, other.parallel_for_);
        std::swap(poller_, other.poller_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~handle() { close(); }

    /* Calls of a handle that is closed throw; its counts are 0. */
    void close() noexcept {
        if (api_->close) api_->close(handle_);
        handle_ = nullptr;
    }

    int threads() const { return api_->thread_count(handle_); }
    int variants() const { return api_->variant_count(handle_); }
    int inputs(int variant = 0) const { return api_->input_count(handle_, variant); }
    int outputs(int variant = 0) const { return api_->output_count(handle_, variant); }
    const modelc_tensor *input(int index, int variant = 0) const { return api_->input(handle_, variant, index); }
    const modelc_tensor *output(int index, int variant = 0) const { return api_->output(handle_, variant, index); }
    const char *metadata() const { return api_->metadata(handle_); }
    modelc_handle *get() const { return handle_; }

    /* Inputs of a variant's own shapes. */
    void run(const buffers<modelc::input> &given, const buffers<modelc::output> &taken, int variant = 0) {
        run_on(variant, nullptr, given, taken);
    }

    /* The smallest variant that takes inputs of these shapes. */
    int fit(const std::vector<shape> &shapes) const { return fitting(extents_of(shapes).data()); }

    /* Inputs of these shapes, on the variant that fits, which is returned: for output_shape, and for output, whose bytes are
     * the most that the buffers have to hold. */
    int run_shaped(const std::vector<shape> &shapes, const buffers<modelc::input> &given,
                   const buffers<modelc::output> &taken) {
        const auto extents = extents_of(shapes);
        const int variant = fitting(extents.data());
        run_on(variant, extents.data(), given, taken);
        return variant;
    }

    /* The shape that an output had in the last run of a variant. */
    shape output_shape(int index, int variant = 0) const {
        const modelc_tensor *tensor = output(index, variant);
        shape extents(tensor ? std::size_t(tensor->rank) + 1 : 1); /* data() is not NULL */
        check(api_->output_shape(handle_, variant, index, extents.data()));
        extents.pop_back();
        return extents;
    }

    void reset() { check(api_->reset(handle_)); }
    void seed(std::uint64_t seed) { check(api_->seed(handle_, seed)); }

    /* From now on runs end, also one that goes on in another thread, and throw MODELC_STOPPED; until it is false. */
    void stop(bool stopped = true) noexcept { api_->stop(handle_, stopped); }

    /* Runs that last longer throw MODELC_LATE; 0: they may last. */
    void time_limit(std::chrono::nanoseconds limit) {
        if (limit.count() < 0) throw error(MODELC_BAD_ARGUMENT, "a time limit is less than 0");
        check(needed(api_->time_limit, "time_limit")(handle_, std::uint64_t(limit.count())));
    }

    /* Runs throw MODELC_INTERRUPTED when this says true; no exception may leave it. An empty function ends it. */
    void poll(std::function<bool()> poller) {
        auto next = std::make_unique<std::function<bool()>>(std::move(poller));
        check(api_->poll(handle_, *next ? ask : nullptr, next.get()));
        poller_ = std::move(next);
    }

    void profile_start() { check(needed(api_->profile_start, "profile_start")(handle_)); }
    void profile_stop() { check(needed(api_->profile_stop, "profile_stop")(handle_)); }
    std::vector<modelc_step_profile> profile(int variant = 0) const {
        std::vector<modelc_step_profile> steps(std::size_t(api_->step_count(handle_, variant)));
        for (std::size_t i = 0; i < steps.size(); i++) check(api_->profile_read(handle_, variant, int(i), &steps[i]));
        return steps;
    }

    void check(modelc_status status) const {
        if (status) throw error(status, api_->last_error());
    }

  private:
    handle(const modelc_api *api, std::unique_ptr<unsigned char[]> own)
        : handle(api, own.get() + (64 - reinterpret_cast<std::uintptr_t>(own.get()) % 64) % 64) {
        own_ = std::move(own);
    }

    template <class Open>
    void open(options chosen, const Open &begin) {
        modelc_options o{};
        o.size = sizeof o;
        o.threads = chosen.threads;
        o.check = chosen.check;
        o.seed = chosen.seed;
        if (chosen.parallel_for) {
            parallel_for_ = std::make_unique<decltype(chosen.parallel_for)>(std::move(chosen.parallel_for));
            o.parallel_for = share_out;
            o.context = parallel_for_.get();
        }
        check(begin(&o));
    }

    static void share_out(void *context, modelc_task function, void *arguments, std::int32_t count) noexcept {
        (*static_cast<decltype(options::parallel_for) *>(context))(count, task(function, arguments));
    }

    static int ask(void *poller) noexcept { return (*static_cast<std::function<bool()> *>(poller))(); }

    template <class Function>
    static Function needed(Function function, const char *name) {
        if (!function) throw error(MODELC_BAD_ARGUMENT, std::string("a free-standing model has no ") + name);
        return function;
    }

    void refuse_closed() const {
        if (!handle_) throw error(MODELC_BAD_ARGUMENT, "the model is closed");
    }

    int fitting(const std::int64_t *const *extents) const {
        std::int32_t variant = -1;
        check(api_->fit(handle_, extents, &variant));
        return variant;
    }

    /* The shapes as C takes them, of as many extents each as the inputs' ranks. */
    std::vector<const std::int64_t *> extents_of(const std::vector<shape> &shapes) const {
        static const std::int64_t none = 0; /* of a scalar: any address */
        std::vector<const std::int64_t *> extents;
        refuse_closed();
        if (shapes.size() != std::size_t(inputs()))
            throw error(MODELC_BAD_ARGUMENT, std::to_string(shapes.size()) + " shapes were given; the model has " +
                                                 std::to_string(inputs()) + " inputs");
        for (const shape &given : shapes) {
            const modelc_tensor *tensor = input(int(extents.size()));
            if (given.size() != std::size_t(tensor->rank))
                throw error(MODELC_BAD_ARGUMENT, "a shape of " + std::to_string(given.size()) + " extents was given for input '" +
                                                     tensor->name + "', which has " + std::to_string(tensor->rank));
            extents.push_back(given.empty() ? &none : given.data());
        }
        extents.push_back(nullptr); /* data() is not NULL */
        return extents;
    }

    /* `extents` fit the variant; NULL: they are its own. */
    void run_on(int variant, const std::int64_t *const *extents, const buffers<modelc::input> &given,
                const buffers<modelc::output> &taken) {
        std::vector<const void *> in;
        std::vector<void *> out;
        refuse_closed();
        if (variant < 0 || variant >= variants())
            throw error(MODELC_BAD_ARGUMENT, "variant " + std::to_string(variant) + " was asked for; the package has " +
                                                 std::to_string(variants()));
        if (given.size() != std::size_t(inputs(variant)) || taken.size() != std::size_t(outputs(variant)))
            throw error(MODELC_BAD_ARGUMENT, "variant " + std::to_string(variant) + " has " + std::to_string(inputs(variant)) +
                                                 " inputs and " + std::to_string(outputs(variant)) + " outputs");
        for (std::size_t i = 0; i < given.size(); i++) {
            const modelc_tensor *tensor = input(int(i), variant);
            std::size_t bytes = tensor->bytes; /* of as many elements as the shape has */
            for (std::int32_t axis = 0; extents && bytes && axis < tensor->rank; axis++) bytes /= std::size_t(tensor->shape[axis]);
            for (std::int32_t axis = 0; extents && bytes && axis < tensor->rank; axis++) bytes *= std::size_t(extents[i][axis]);
            refuse_unless(given[i].bytes == bytes, "input", i, tensor, bytes, given[i]);
            in.push_back(given[i].data);
        }
        for (std::size_t i = 0; i < taken.size(); i++) {
            const modelc_tensor *tensor = output(int(i), variant);
            refuse_unless(taken[i].bytes >= tensor->bytes, "output", i, tensor, tensor->bytes, taken[i]);
            out.push_back(taken[i].data);
        }
        check(api_->run_shaped(handle_, variant, extents, in.data(), out.data()));
    }

    template <class Void>
    static void refuse_unless(bool fits, const char *kind, std::size_t index, const modelc_tensor *tensor, std::size_t bytes,
                              const buffer<Void> &given) {
        const std::string name = std::string(kind) + " " + std::to_string(index) + " ('" + tensor->name + "')";
        if (!fits)
            throw error(MODELC_BAD_ARGUMENT, name + " has " + std::to_string(bytes) + " bytes, and a buffer of " +
                                                 std::to_string(given.bytes) + " was given");
        /* Bits stand for halves, bytes for all dtypes of a byte. */
        const std::int32_t dtype = tensor->dtype, of = given.dtype;
        const bool halves = (dtype == MODELC_FLOAT16 || dtype == MODELC_BFLOAT16) && of == MODELC_UINT16;
        const bool small = dtype >= MODELC_BOOL || dtype == MODELC_INT8 || dtype == MODELC_UINT8;
        const bool byte = small && (of == MODELC_INT8 || of == MODELC_UINT8 || of == MODELC_BOOL);
        if (of && of != dtype && !halves && !byte)
            throw error(MODELC_BAD_ARGUMENT, name + " is " + name_of(dtype) + ", and a buffer of " + name_of(of) + " was given");
    }

    const modelc_api *api_;
    std::unique_ptr<unsigned char[]> own_;
    std::unique_ptr<decltype(options::parallel_for)> parallel_for_;
    std::unique_ptr<std::function<bool()>> poller_;
    modelc_handle *handle_ = nullptr;
};

}  // namespace modelc

#endif

namespace PREFIX {

class model : public modelc::handle {
  public:
HOSTED     explicit model(const std::string &path, modelc::options options = {})
HOSTED         : modelc::handle(PREFIX_api(), path, std::move(options)) {}
HOSTED     explicit model(modelc::in_memory where, modelc::options options = {})
HOSTED         : modelc::handle(PREFIX_api(), where, std::move(options)) {}
HOSTED     explicit model(modelc::in_file where, modelc::options options = {})
HOSTED         : modelc::handle(PREFIX_api(), where, std::move(options)) {}
BARE     model() : modelc::handle(PREFIX_api()) {} /* in memory of its own */
BARE     explicit model(void *memory) : modelc::handle(PREFIX_api(), memory) {}
};

}  // namespace PREFIX
