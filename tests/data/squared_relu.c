/* A library of one custom operator for ONNX Runtime: tests.kernels.SquaredRelu(x, scale=1) is scale * max(x, 0)^2, of floats.

   Wheels of onnxruntime have no headers, so what is needed of its C API is said here: a table of functions, which only
   ever grows at its end, and a struct that says of which version it is. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct Status Status;
typedef struct Options Options;
typedef struct Domain Domain;
typedef struct Info Info;
typedef struct Context Context;
typedef struct Value Value;
typedef struct Shape Shape;

typedef const void *const *Api;
typedef struct { Api (*get)(uint32_t version); } ApiBase;

/* functions by their place in the table */
#define CREATE_DOMAIN(api) ((Status *(*)(const char *, Domain **))(api)[26])
#define ADD_OPERATOR(api) ((Status *(*)(Domain *, const void *))(api)[27])
#define ADD_DOMAIN(api) ((Status *(*)(Options *, Domain *))(api)[28])
#define DATA(api) ((Status *(*)(Value *, void **))(api)[51])
#define RANK(api) ((Status *(*)(const Shape *, size_t *))(api)[61])
#define SIZES(api) ((Status *(*)(const Shape *, int64_t *, size_t))(api)[62])
#define COUNT(api) ((Status *(*)(const Shape *, size_t *))(api)[64])
#define SHAPE(api) ((Status *(*)(const Value *, Shape **))(api)[65])
#define ATTRIBUTE(api) ((Status *(*)(const Info *, const char *, float *))(api)[85])
#define INPUT(api) ((Status *(*)(const Context *, size_t, Value **))(api)[90])
#define OUTPUT(api) ((Status *(*)(Context *, size_t, const int64_t *, size_t, Value **))(api)[91])
#define RELEASE_STATUS(api) ((void (*)(Status *))(api)[93])
#define RELEASE_SHAPE(api) ((void (*)(Shape *))(api)[99])

typedef struct {
    Api api;
    float scale;
} Kernel;

typedef struct Operator {
    uint32_t version;
    void *(*create)(const struct Operator *, Api, const Info *);
    const char *(*name)(const struct Operator *);
    const char *(*provider)(const struct Operator *);
    int (*input_type)(const struct Operator *, size_t);
    size_t (*input_count)(const struct Operator *);
    int (*output_type)(const struct Operator *, size_t);
    size_t (*output_count)(const struct Operator *);
    void (*compute)(void *, Context *);
    void (*destroy)(void *);
    int (*input_kind)(const struct Operator *, size_t);
    int (*output_kind)(const struct Operator *, size_t);
    void *later[16];
} Operator;

static void *create(const Operator *self, Api api, const Info *info) {
    Kernel *kernel = malloc(sizeof *kernel);
    *kernel = (Kernel){api, 1.0f};
    Status *absent = ATTRIBUTE(api)(info, "scale", &kernel->scale);
    if (absent) RELEASE_STATUS(api)(absent);
    return kernel;
}

static void compute(void *self, Context *context) {
    const Kernel *kernel = self;
    Api api = kernel->api;
    Value *input, *output;
    Shape *shape;
    float *from, *to;
    size_t rank, count;
    int64_t sizes[16];
    INPUT(api)(context, 0, &input);
    SHAPE(api)(input, &shape);
    RANK(api)(shape, &rank);
    SIZES(api)(shape, sizes, rank);
    COUNT(api)(shape, &count);
    RELEASE_SHAPE(api)(shape);
    OUTPUT(api)(context, 0, sizes, rank, &output);
    DATA(api)(input, (void **)&from);
    DATA(api)(output, (void **)&to);
    for (size_t i = 0; i < count; i++) {
        float positive = from[i] > 0 ? from[i] : 0;
        to[i] = kernel->scale * positive * positive;
    }
}

static const char *name(const Operator *self) { return "SquaredRelu"; }
static const char *provider(const Operator *self) { return NULL; } /* the processor */
static int type(const Operator *self, size_t index) { return 1; } /* float */
static int kind(const Operator *self, size_t index) { return 0; } /* required */
static size_t one(const Operator *self) { return 1; }

static const Operator squared_relu = {8, create, name, provider, type, one, type, one, compute, free, kind, kind, {NULL}};

Status *RegisterCustomOps(Options *options, const ApiBase *base) {
    Api api = base->get(8);
    Domain *domain;
    Status *failed = CREATE_DOMAIN(api)("tests.kernels", &domain);
    if (!failed) failed = ADD_OPERATOR(api)(domain, &squared_relu);
    return failed ? failed : ADD_DOMAIN(api)(options, domain);
}
