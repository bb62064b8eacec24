/* Sentences: as much of printf as they need, which no system has to bring. */
#include <stdarg.h>

#include "modelc_runtime.h"

typedef struct writer {
    char *text;
    size_t size, used;
} writer;

static void put(writer *w, char c) {
    if (w->used + 1 < w->size) w->text[w->used++] = c;
}

static void put_number(writer *w, uint64_t number, int negative) {
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + number % 10);
    while (number /= 10);
    if (negative) put(w, '-');
    while (n) put(w, digits[--n]);
}

/* Whole numbers are %d, and %ld, %lld, %llu and %zu; %s; nothing else. */
size_t mc_write(char *text, size_t size, const char *format, va_list arguments) {
    writer w = {text, size, 0};
    for (; *format; format++) {
        if (*format != '%') {
            put(&w, *format);
            continue;
        }
        int longs = 0, whole = 0;
        while (*++format == 'l' || *format == 'z') *format == 'l' ? longs++ : (whole = 1);
        if (*format == 's') {
            const char *word = va_arg(arguments, const char *);
            for (; word && *word; word++) put(&w, *word);
        } else if (*format == 'u') {
            put_number(&w, whole ? va_arg(arguments, size_t) : va_arg(arguments, unsigned long long), 0);
        } else if (*format == 'd') {
            int64_t number = longs > 1   ? va_arg(arguments, long long)
                             : longs     ? va_arg(arguments, long)
                                         : va_arg(arguments, int);
            put_number(&w, number < 0 ? -(uint64_t)number : (uint64_t)number, number < 0);
        } else {
            put(&w, *format);
        }
    }
    if (size) text[w.used] = 0;
    return w.used;
}

size_t mc_append(char *text, size_t size, size_t used, const char *format, ...) {
    va_list arguments;
    if (used >= size) return used;
    va_start(arguments, format);
    used += mc_write(text + used, size - used, format, arguments);
    va_end(arguments);
    return used;
}

modelc_status mc_fail(modelc_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    mc_write(mc_message(), MC_MESSAGE_BYTES, format, arguments);
    va_end(arguments);
    return status;
}

const char *modelc_last_error(void) { return mc_message(); }
