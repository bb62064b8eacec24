// As examples/c/classify.c, in C++17.
//
//     modelc compile MODEL.onnx --prefix net --emit a -o net.modelc
//     c++ -std=c++17 -O2 -I net.modelc classify.cpp net.modelc/libnet.a -lm -pthread -o classify
//     ./classify net.modelc input.bin
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "net.hpp"

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    try {
        net::model model(argv[1], 1);
        std::vector<float> x(model.input(0)->bytes / sizeof(float)), y(model.output(0)->bytes / sizeof(float));
        std::ifstream file(argv[2], std::ios::binary);
        if (!file.read(reinterpret_cast<char *>(x.data()), std::streamsize(x.size() * sizeof(float)))) {
            std::fprintf(stderr, "the input cannot be read, or is too short\n");
            return 1;
        }
        model.run({x}, {y});
        auto best = std::max_element(y.begin(), y.end());
        std::printf("%td %.6f\n", best - y.begin(), double(*best));
    } catch (const modelc::error &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
