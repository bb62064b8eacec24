/* The model for C++17: handles that close themselves, buffers with their sizes, errors that are thrown.
 *
HOSTED  *     PREFIX::model model("NAME.modelc", 2);
BARE  *     PREFIX::model model;
 *     std::vector<float> x(...), y(...);
 *     model.run({modelc::bytes_of(x)}, {modelc::bytes_of(y)});
 */
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
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

/* Memory of a known size. */
template <class Byte>
struct span {
    Byte *data;
    std::size_t bytes;
};

template <class T>
span<void> bytes_of(T *data, std::size_t count) { return {data, count * sizeof(T)}; }
template <class T>
span<const void> bytes_of(const T *data, std::size_t count) { return {data, count * sizeof(T)}; }
template <class Container>
auto bytes_of(Container &container) { return bytes_of(container.data(), container.size()); }

struct input : span<const void> {
    input(span<const void> s) : span<const void>(s) {}
    input(span<void> s) : span<const void>{s.data, s.bytes} {}
};

class handle {
  public:
    handle(const modelc_api *api, const std::string &path, int threads = 0) : api_(api) {
        modelc_options options{};
        options.size = sizeof options;
        options.threads = threads;
        check(api_->open(path.c_str(), &options, &handle_));
    }
    /* Of a free-standing library: in the program's memory, api->memory_size() bytes aligned to 64; in memory of its own. */
    handle(const modelc_api *api, void *memory) : api_(api), handle_(api->init(memory)) {
        bool is_right = memory && reinterpret_cast<std::uintptr_t>(memory) % 64 == 0;
        if (!handle_) throw error(is_right ? MODELC_NO_CPU : MODELC_BAD_ARGUMENT, api_->last_error());
    }
    explicit handle(const modelc_api *api) : handle(api, std::make_unique<unsigned char[]>(api->memory_size() + 63)) {}
    handle(handle &&other) noexcept
        : api_(other.api_), own_(std::move(other.own_)), handle_(std::exchange(other.handle_, nullptr)) {}
    handle &operator=(handle &&other) noexcept {
        std::swap(api_, other.api_);
        std::swap(own_, other.own_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~handle() {
        if (api_->close) api_->close(handle_);
    }

    int threads() const { return api_->thread_count(handle_); }
    int variants() const { return api_->variant_count(handle_); }
    int inputs(int variant = 0) const { return api_->input_count(handle_, variant); }
    int outputs(int variant = 0) const { return api_->output_count(handle_, variant); }
    const modelc_tensor *input(int index, int variant = 0) const { return api_->input(handle_, variant, index); }
    const modelc_tensor *output(int index, int variant = 0) const { return api_->output(handle_, variant, index); }
    modelc_handle *get() const { return handle_; }

    void run(std::initializer_list<modelc::input> given, std::initializer_list<span<void>> taken, int variant = 0) {
        std::vector<const void *> in;
        std::vector<void *> out;
        if ((int)given.size() != inputs(variant) || (int)taken.size() != outputs(variant))
            throw error(MODELC_BAD_ARGUMENT, "the model has " + std::to_string(inputs(variant)) + " inputs and " +
                                                 std::to_string(outputs(variant)) + " outputs");
        for (const auto &buffer : given) in.push_back(fitting("input", input((int)in.size(), variant), in.size(), buffer));
        for (const auto &buffer : taken) out.push_back(fitting("output", output((int)out.size(), variant), out.size(), buffer));
        check(api_->run(handle_, variant, in.data(), out.data()));
    }

    void reset() { check(api_->reset(handle_)); }

    /* From now on runs end, also one that goes on in another thread, and throw MODELC_STOPPED; until it is false. */
    void stop(bool stopped = true) noexcept { api_->stop(handle_, stopped); }

    void check(modelc_status status) const {
        if (status) throw error(status, api_->last_error());
    }

  private:
    handle(const modelc_api *api, std::unique_ptr<unsigned char[]> own)
        : handle(api, own.get() + (64 - reinterpret_cast<std::uintptr_t>(own.get()) % 64) % 64) {
        own_ = std::move(own);
    }

    template <class Byte>
    static Byte *fitting(const char *kind, const modelc_tensor *tensor, std::size_t index, span<Byte> buffer) {
        if (buffer.bytes >= tensor->bytes) return buffer.data;
        throw error(MODELC_BAD_ARGUMENT, std::string(kind) + " " + std::to_string(index) + " ('" + tensor->name + "') has " +
                                             std::to_string(tensor->bytes) + " bytes, and a buffer of " +
                                             std::to_string(buffer.bytes) + " was given");
    }

    const modelc_api *api_;
    std::unique_ptr<unsigned char[]> own_;
    modelc_handle *handle_ = nullptr;
};

}  // namespace modelc

#endif

namespace PREFIX {

class model : public modelc::handle {
  public:
HOSTED     explicit model(const std::string &path, int threads = 0) : modelc::handle(PREFIX_api(), path, threads) {}
BARE     model() : modelc::handle(PREFIX_api()) {} /* in memory of its own */
BARE     explicit model(void *memory) : modelc::handle(PREFIX_api(), memory) {}
};

}  // namespace PREFIX
