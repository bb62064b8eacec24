"""A Block, a Task and Nests as text, which are right."""

from __future__ import annotations

CONV = """\
block conv [n:2 o:5 h:7 w:6 | c:3 r:3 s:3] add
  where h * 2 + r - 1 >= 0 and h * 2 + r - 1 < 13 and w + s - 1 >= 0 and w + s - 1 < 6
  Y[n, o, h, w] += X[n, c, h * 2 + r - 1, w + s - 1] * W[o, c, r, s]"""
SOFTMAX = """\
task softmax(x) -> (y) anchor exp
  in x: float32[6, 37]
  local peak: float32[6]
  local e: float32[6, 37]
  local total: float32[6]
  out y: float32[6, 37]
  block max [i:6 | j:37] max
    peak[i] max= x[i, j]
  block exp [i:6 j:37] assign
    e[i, j] = exp(x[i, j] - peak[i])
  block sum [i:6 | j:37] add
    total[i] += e[i, j]
  block div [i:6 j:37] assign
    y[i, j] = e[i, j] / total[i]"""
MATMUL = """\
nest mm(A: float32[22, 7]; B: float32[7, 32]; Y: float32[22, 32]) -> (Y)
  phase
    parallel m0:4
      if m0 < 3
        for n0:2
          register acc: float32[6, 16]
          unroll m1:6
            vector n1:16
              init mm[m=m0 * 6 + m1, n=n0 * 16 + n1] add
                acc[m1, n1] = float32(0.0)
          for k0:7
            unroll m1:6
              vector n1:16
                update mm[m=m0 * 6 + m1, n=n0 * 16 + n1, k=k0] add
                  acc[m1, n1] += A[m0 * 6 + m1, k0] * B[k0, n0 * 16 + n1]
          unroll m1:6
            vector n1:16
              assign store[m=m0 * 6 + m1, n=n0 * 16 + n1] assign
                Y[m0 * 6 + m1, n0 * 16 + n1] = max(acc[m1, n1], float32(0.0))
      else
        for n0:2
          register acc: float32[4, 16]
          unroll m1:4
            vector n1:16
              init mm[m=18 + m1, n=n0 * 16 + n1] add
                acc[m1, n1] = float32(0.0)
          for k0:7
            unroll m1:4
              vector n1:16
                update mm[m=18 + m1, n=n0 * 16 + n1, k=k0] add
                  acc[m1, n1] += A[18 + m1, k0] * B[k0, n0 * 16 + n1]
          unroll m1:4
            vector n1:16
              assign store[m=18 + m1, n=n0 * 16 + n1] assign
                Y[18 + m1, n0 * 16 + n1] = max(acc[m1, n1], float32(0.0))"""
ROWS = """\
nest softmax(x: float32[6, 37]; y: float32[6, 37]) -> (y)
  phase
    parallel i0:6
      local peak: float32[1]
      local e: float32[37]
      local total: float32[1]
      init max[i=i0] max
        peak[0] = float32(-inf)
      for j0:37
        update max[i=i0, j=j0] max
          peak[0] max= x[i0, j0]
      for j0:37
        assign exp[i=i0, j=j0] assign
          e[j0] = exp(x[i0, j0] - peak[0])
      init sum[i=i0] add
        total[0] = float32(0.0)
      for j0:37
        update sum[i=i0, j=j0] add
          total[0] += e[j0]
      for j0:37
        assign div[i=i0, j=j0] assign
          y[i0, j0] = e[j0] / total[0]"""
CONCAT = """\
nest cat(a: float32[4, 3]; b: float32[4, 5]; c: float32[4, 3] strides(8, 1); d: float32[4, 5] strides(8, 1)) -> (c, d)
  phase
    parallel i0:4
      for j0:3
        assign a[i=i0, j=j0] assign
          c[i0, j0] = a[i0, j0] + float32(1.0)
  phase
    for i0:4
      vector j0:5
        assign b[i=i0, j=j0] assign
          d[i0, j0] = b[i0, j0] * float32(2.0)"""
