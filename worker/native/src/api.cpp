// The plain C interface of this library. Every handle that is made is freed by its own function; a null handle or a
// negative number says that there was no memory for weights or for a step's states and activations, or that this build
// has no such number format. Memory for small things (a plan, a handle) is taken for granted.
#include "decoder.h"

namespace {

using namespace rg;

enum Format { kFloat32 = 0, kBFloat16 = 1 };

// Calls use(Number{}) for the number format, if this build has it.
template <class Use>
bool with_format(int format, const Use& use) {
    if (format == kFloat32) return use(Float32{});
#if RG_HAS_BF16
    if (format == kBFloat16) return use(BFloat16{});
#endif
    return false;
}

struct AnyDecoder {
    virtual ~AnyDecoder() = default;
    virtual bool run(Plan& plan, const DecoderStep& step, int threads) = 0;
};

template <class Number>
struct DecoderOf final : AnyDecoder {
    template <class... Arguments>
    explicit DecoderOf(Arguments... arguments) : decoder(arguments...) {}
    bool run(Plan& plan, const DecoderStep& step, int threads) override { return decoder.run(plan, step, threads); }
    Decoder<Number> decoder;
};

}  // namespace

extern "C" {

int rg_abi_version() { return 2; }

int rg_has_format(int format) {
    return with_format(format, [](auto) { return true; });
}

// Columns of a panel: gates and ups of half as many each share one.
int rg_panel() { return kPanel; }

void* rg_weights_pack(int format, const void* const* rows, int outputs, int inputs, int threads) {
    auto* weights = new Weights;
    const bool packed = with_format(format, [&](auto number) {
        return pack<decltype(number)>(*weights, rows, outputs, inputs, threads);
    });
    if (packed) return weights;
    delete weights;
    return nullptr;
}

void rg_weights_free(void* weights) { delete static_cast<Weights*>(weights); }

void* rg_plan_create(const Step* step) { return new Plan(*step); }

void rg_plan_free(void* plan) { delete static_cast<Plan*>(plan); }

void* rg_attention_create() { return new AttentionSpace; }

void rg_attention_free(void* space) { delete static_cast<AttentionSpace*>(space); }

int rg_attention_run(
    void* space_handle, void* plan_handle, int format, const AttentionShape* shape, const void* query,
    const void* keys, const void* values, const float* sinks, void* out, int threads
) {
    auto& space = *static_cast<AttentionSpace*>(space_handle);
    auto& plan = *static_cast<Plan*>(plan_handle);
    const bool done = with_format(format, [&](auto number) {
        using Number = decltype(number);
        using Stored = typename Number::Stored;
        if (!space.reserve(plan, *shape, threads)) return false;
        const AttentionCall<Number> call{
            static_cast<const Stored*>(query), static_cast<const Stored*>(keys), static_cast<const Stored*>(values),
            sinks, static_cast<Stored*>(out)};
        const Items& items = plan.items(shape->group(), items_wanted(*shape, threads));
        Team::run(threads, attention_phases(items), [&](Member& member) { attend(member, plan, items, *shape, call, space); });
        return true;
    });
    return done ? 0 : -1;
}

void* rg_decoder_create(
    int format, const DecoderShape* shape, const LayerParts* layers, int num_layers, const void* embedding,
    const float* last_norm, const void* head
) {
    AnyDecoder* decoder = nullptr;
    with_format(format, [&](auto number) {
        decoder = new DecoderOf<decltype(number)>(
            *shape, layers, num_layers, embedding, last_norm, static_cast<const Weights*>(head)
        );
        return true;
    });
    return decoder;
}

void rg_decoder_free(void* decoder) { delete static_cast<AnyDecoder*>(decoder); }

void* rg_adapter_create(int num_layers) { return new Adapter(num_layers); }

void rg_adapter_free(void* adapter) { delete static_cast<Adapter*>(adapter); }

int rg_adapter_set(
    void* adapter, int format, int layer, int site, const void* const* down, int rank, int inputs,
    const void* const* up, int outputs
) {
    const bool done = with_format(format, [&](auto number) {
        return static_cast<Adapter*>(adapter)->set<decltype(number)>(layer, site, down, rank, inputs, up, outputs);
    });
    return done ? 0 : -1;
}

int rg_decoder_run(void* decoder, void* plan, const DecoderStep* step, int threads) {
    return static_cast<AnyDecoder*>(decoder)->run(*static_cast<Plan*>(plan), *step, threads) ? 0 : -1;
}

}  // extern "C"
