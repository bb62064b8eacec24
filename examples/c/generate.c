/* The likeliest tokens behind others, one after the other, by a decoder that keeps its cache; as numbers.
 *
 *     modelc compile DECODER.onnx --state 'past_key_values.*=present.*' --prefix decoder --emit a -o decoder.modelc
 *     cc -O2 -I decoder.modelc generate.c decoder.modelc/libdecoder.a -lm -pthread -o generate
 *     ./generate decoder.modelc 200 504 3575 282 4649 314
 *
 * With the model of examples/generate.py, in text:
 *
 *     ./generate decoder.modelc 200 $(python generate.py --encode "The capital of France is") | python generate.py --decode
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"

enum { MOST_INPUTS = 3 };

static int failed(const char *what) {
    fprintf(stderr, "%s\n", what);
    return 1;
}

/* What an input is for new tokens behind `past` others: the tokens, their places, or a mask of all. */
static size_t fill(const char *name, const int64_t *tokens, size_t fresh, size_t past, int64_t *data) {
    const int masks = !strcmp(name, "attention_mask"), places = !strcmp(name, "position_ids");
    const size_t count = masks ? past + fresh : fresh;
    for (size_t k = 0; k < count; k++) data[k] = masks ? 1 : places ? (int64_t)(past + k) : tokens[k];
    return count;
}

int main(int argc, char **argv) {
    modelc_handle *model;
    if (argc < 4) return failed("usage: generate PACKAGE COUNT TOKEN...");
    if (decoder_open(argv[1], NULL, &model)) return failed(decoder_last_error());
    const long wanted = strtol(argv[2], NULL, 10);
    size_t fresh = (size_t)argc - 3, past = 0, room = 0;
    const int32_t inputs = decoder_input_count(model, 0);
    if (inputs > MOST_INPUTS) return failed("the decoder takes other inputs than tokens, their places and a mask");
    int64_t *given[MOST_INPUTS], shapes[MOST_INPUTS][2];
    const int64_t *shape_of[MOST_INPUTS];
    const void *data[MOST_INPUTS];
    for (int32_t i = 0; i < inputs; i++) {
        const modelc_tensor *input = decoder_input(model, 0, i);
        if (input->rank != 2 || input->dtype != MODELC_INT64) return failed("expected inputs of int64 [1, length]");
        data[i] = given[i] = malloc(input->bytes);
        shape_of[i] = shapes[i];
        if (!given[i]) return failed("out of memory");
        if (!strcmp(input->name, "input_ids")) room = (size_t)input->shape[1];
    }
    const modelc_tensor *output = decoder_output(model, 0, 0);
    const size_t vocabulary = (size_t)output->shape[output->rank - 1];
    float *logits = malloc(output->bytes);
    int64_t *tokens = calloc(fresh, sizeof *tokens);
    if (!logits || !tokens) return failed("out of memory");
    if (fresh > room) return failed("the prompt is longer than the decoder takes at once");
    for (size_t k = 0; k < fresh; k++) tokens[k] = strtoll(argv[3 + k], NULL, 10);
    void *outputs[] = {logits};
    for (long made = 0; made < wanted; made++) {
        for (int32_t i = 0; i < inputs; i++) {
            shapes[i][0] = 1;
            shapes[i][1] = (int64_t)fill(decoder_input(model, 0, i)->name, tokens, fresh, past, given[i]);
        }
        if (decoder_run_shaped(model, 0, shape_of, data, outputs)) return failed(decoder_last_error());
        const float *last = logits + (fresh - 1) * vocabulary;
        size_t best = 0;
        for (size_t k = 1; k < vocabulary; k++)
            if (last[k] > last[best]) best = k;
        printf("%zu\n", best);
        fflush(stdout);
        past += fresh;
        tokens[0] = (int64_t)best;
        fresh = 1;
    }
    decoder_close(model);
    free(logits);
    free(tokens);
    for (int32_t i = 0; i < inputs; i++) free(given[i]);
    return 0;
}
