// SPDX-License-Identifier: BSD-3-Clause
// test_cuda_kernels - plugins/cuda/kernels.cu itself, thread by thread on the CPU (cuda_emulation.h): for machines without
// a device. On one, tests/device/test_kernels.c tests the same.
#include "tests/unit/cuda_emulation.h"

#include "plugins/cuda/kernels.cu"

#include <algorithm>

static int n_tests, n_failed;

static void check(bool good, const char *what, double a = 0, double b = 0)
{
	if (good)
		return;
	printf("# %s: %.17g, %.17g\n", what, a, b);
	n_failed++;
}

static uint64_t seed = 88172645463325252u;

static double random_real()
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return double(seed >> 11) / double(uint64_t(1) << 52) - 1;
}

static const size_t lengths[] = { 1, 2, 255, 256, 257, 1023, 1024, 1025, 2500, 5000 };
static const unsigned grids[] = { 1, 2, 3 };

template <typename real> static std::vector<real> random_vector(size_t n)
{
	std::vector<real> out(n);

	for (real &x : out)
		x = real(random_real());
	return out;
}

// ---- element by element, and reductions ------------------------------------------------------------------

template <typename real>
static void elements(void (*axpy)(real *, real, const real *, uint64_t),
		     void (*mul)(real *, const real *, const real *, uint64_t))
{
	for (size_t n : lengths)
		for (unsigned grid : grids) {
			std::vector<real> x = random_vector<real>(n),
					  y = random_vector<real>(n + 1);
			std::vector<real> was = y;

			emulation::launch(grid, [&] { axpy(y.data(), real(0.5), x.data(), n); });
			for (size_t i = 0; i < n; i++)
				check(y[i] == was[i] + real(0.5) * x[i], "axpy", y[i], was[i]);
			was = y;
			emulation::launch(grid, [&] { mul(y.data(), y.data(), x.data(), n); });
			for (size_t i = 0; i < n; i++)
				check(y[i] == was[i] * x[i], "mul in place", y[i], was[i]);
			check(y[n] == was[n], "the element behind the last");
		}
}

static void element_by_element()
{
	elements<float>(bh_axpy_f32, bh_mul_f32);
	elements<double>(bh_axpy_f64, bh_mul_f64);
}

template <typename real>
static void reductions_of(void (*sum)(double *, const real *, uint64_t),
			  void (*dot)(double *, const real *, const real *, uint64_t),
			  void (*max)(double *, const real *, uint64_t))
{
	for (size_t n : lengths)
		for (unsigned grid : grids) {
			std::vector<real> a(n);
			std::vector<double> parts(grid);
			double total = 0, squares = 0, best = -INFINITY, found = 0;

			for (size_t i = 0; i < n; i++) {
				a[i] = real(int(i * 7919 % 1009) - 500);
				total += a[i];
				squares += double(a[i]) * a[i];
				best = std::max(best, double(a[i]));
			}
			emulation::launch(grid, [&] { sum(parts.data(), a.data(), n); });
			for (double part : parts)
				found += part;
			check(found == total, "sum", found, total);
			emulation::launch(grid, [&] { dot(parts.data(), a.data(), a.data(), n); });
			found = 0;
			for (double part : parts)
				found += part;
			check(found == squares, "dot", found, squares);
			emulation::launch(grid, [&] { max(parts.data(), a.data(), n); });
			found = *std::max_element(parts.begin(), parts.end());
			check(found == best, "max", found, best);
			a[n / 2] = NAN;
			emulation::launch(grid, [&] { max(parts.data(), a.data(), n); });
			check(std::any_of(parts.begin(), parts.end(),
					  [](double x) { return isnan(x); }),
			      "max of a NaN");
		}
}

static void reductions()
{
	reductions_of<float>(bh_sum_f32, bh_dot_f32, bh_max_f32);
	reductions_of<double>(bh_sum_f64, bh_dot_f64, bh_max_f64);
}

// Large and small, so that a plain sum loses the small ones.
static void sums_are_compensated()
{
	const size_t n = 256 * 16 * 40;
	std::vector<double> a(n, 1.0), parts(1);

	for (size_t i = 0; i < 256 * 16; i++) {
		a[i] = 0x1p53;
		a[n - 1 - i] = -0x1p53;
	}
	emulation::launch(1, [&] { bh_sum_f64(parts.data(), a.data(), n); });
	check(parts[0] == 256 * 16 * 38, "a compensated sum", parts[0], 256 * 16 * 38);
}

static void matrix_times_vector()
{
	for (uint64_t rows : { 1, 7, 33, 70 })
		for (uint64_t columns : { 0, 1, 31, 300 })
			for (uint32_t lanes : { 8, 32, 256 })
				for (unsigned grid : grids) {
					std::vector<float> m(rows * columns + 1), x(columns + 1),
						out(rows, 7);

					for (size_t i = 0; i < m.size(); i++)
						m[i] = float(int(i % 17) - 8);
					for (size_t i = 0; i < x.size(); i++)
						x[i] = float(int(i % 5) - 2);
					emulation::launch(grid, [&] {
						bh_matvec_f32(out.data(), m.data(), x.data(), rows,
							      columns, lanes);
					});
					for (uint64_t row = 0; row < rows; row++) {
						float sum = 0;

						for (uint64_t i = 0; i < columns; i++)
							sum += m[row * columns + i] * x[i];
						check(out[row] == sum, "matvec", out[row], sum);
					}
				}
}

// ---- the best --------------------------------------------------------------------------------------------

template <typename real>
static void top_k_of(const std::vector<real> &scores, uint32_t k, unsigned grid,
		     void (*top)(const real *, uint64_t, uint32_t, bh_kernel_ranked *))
{
	std::vector<bh_kernel_ranked> left(size_t(grid) * k), best(k);
	std::vector<uint64_t> order;
	uint64_t n = scores.size(), candidates = left.size();

	for (uint64_t i = 0; i < n; i++)
		if (!isnan(scores[i]))
			order.push_back(i);
	std::stable_sort(order.begin(), order.end(),
			 [&](uint64_t a, uint64_t b) { return scores[a] > scores[b]; });
	emulation::launch(grid, [&] { top(scores.data(), n, k, left.data()); });
	emulation::launch(1, [&] { bh_top_k_merge(left.data(), candidates, k, best.data()); });
	if (grid == 1) // then kernels.c takes what is left as it is
		check(memcmp(left.data(), best.data(), k * sizeof(best[0])) == 0, "one block's");
	for (uint32_t i = 0; i < k; i++) {
		if (i >= order.size()) {
			check(best[i].key == 0, "a place behind the last");
			continue;
		}
		check(best[i].index == order[i], "an index", double(best[i].index),
		      double(order[i]));
		check(score_of(best[i].key) == double(scores[order[i]]), "a score");
	}
}

static void the_best()
{
	for (size_t n : lengths)
		for (uint32_t k : { 1u, 100u, 1024u })
			for (unsigned grid : { 1u, 3u })
				for (unsigned order = 0; order < 6; order++) {
					std::vector<float> scores(n);

					if (k > n || n > (order > 1 ? 1100u : 5000u))
						continue;
					for (size_t i = 0; i < n; i++)
						scores[i] = order == 0	 ? float(random_real())
							    : order == 1 ? float(i)
							    : order == 2 ? -float(i)
							    : order == 3 ? (i % 2 ? 0.0f : -0.0f)
							    : order == 4
								    ? float(i * 7919 % 7)
								    : (i % 3 ? NAN : -INFINITY);
					top_k_of<float>(scores, k, grid, bh_top_k_f32);
					if (order < 2 && n < 5000)
						top_k_of<double>({ scores.begin(), scores.end() },
								 k, grid, bh_top_k_f64);
				}
}

// ---- the suite -------------------------------------------------------------------------------------------

static void run(const char *name, void (*test)())
{
	int before = n_failed;

	for (bool backwards : { false, true }) {
		emulation::backwards = backwards;
		test();
	}
	printf("%s %d - cuda kernels on the CPU: %s\n", n_failed > before ? "not ok" : "ok",
	       ++n_tests, name);
}

int main()
{
#if defined(__SANITIZE_THREAD__)
	printf("1..0 # SKIP the thread sanitizer knows nothing of contexts that take turns\n");
	return 0;
#endif
	setvbuf(stdout, nullptr, _IOLBF, 0);
	printf("1..5\n");
	run("axpy and mul work element by element, whatever the grid", element_by_element);
	run("sum, dot and max take every element once", reductions);
	run("sums are compensated", sums_are_compensated);
	run("matvec sums rows, whatever the lanes", matrix_times_vector);
	run("top_k finds the best in every order, equal ones by index", the_best);
	return n_failed ? 1 : 0;
}
